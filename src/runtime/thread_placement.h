// ThreadPlacement: keeps one thread off the core that another one runs on. A kernel may wake a thread on its waker's core though others
// are idle (a halted core of a virtual machine looks taken); there it waits until the waker sleeps. Linux; elsewhere it does nothing.
#pragma once

#include <cstdint>

namespace takt {

/// The system's number of the calling thread; 0 where there is none.
[[nodiscard]] int64_t this_thread_id();

class ThreadPlacement {
public:
    /// Takes the calling thread's core away from `thread_id`, of those that this process may use; nothing if it would have none left.
    /// Called before that thread is woken: a system call when the core or the thread is another one than before. One thread calls this.
    void keep_off_this_core(int64_t thread_id);
    /// It waits for a core that something else has: moved to this one, where it runs once the calling thread sleeps, and free to go.
    void call_here();

private:
    int64_t thread_id_ = 0;
    int core_ = -1;            // that it is kept off
};

}  // namespace takt
