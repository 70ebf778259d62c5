// SecondSender: a second thread for the `send`s of a step that brings many sockets a frame: a `send` costs several times what the frame
// before it did, and one after the other the last of 64 waits for all. The server's thread goes on sending itself and keeps a few
// messages ready for the other one; where that one gets no core, those few leave when the turn ends.
#pragma once

#include <atomic>
#include <boost/asio/any_io_executor.hpp>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace takt::server {

namespace asio = boost::asio;

class SecondSender : public std::enable_shared_from_this<SecondSender> {
public:
    /// One message for one connected socket, which stays open and is written by nobody else until `finished` was called.
    struct Job {
        int socket = -1;
        std::string bytes;
        std::size_t num_sent = 0;            ///< of `bytes`, once finished; less than all: the socket is full or dead
        std::function<void()> finished;      ///< on the server's thread

    private:
        friend class SecondSender;
        enum class State { free, waiting, taken, sent };
        std::atomic<State> state_{State::free};
    };

    /// `executor`: the server's, of one thread, which makes every call here. On a machine of one core nothing is given away. `apart`:
    /// the second thread keeps off the caller's core, on which the kernel likes to wake it though another is idle.
    SecondSender(asio::any_io_executor executor, bool apart);
    ~SecondSender();
    SecondSender(const SecondSender&) = delete;
    SecondSender& operator=(const SecondSender&) = delete;

    /// Asked for each message. Whether it should be given away: some were sent in this turn already, and few wait.
    bool wants_more();
    /// Takes a free job; its `finished` comes later, by the executor or from finish().
    void give(const std::shared_ptr<Job>& job);
    /// Calls `finished` if the second thread is through with the job; false: it still waits or is being sent.
    bool finish_if_sent(const std::shared_ptr<Job>& job);
    /// Sees a job that was given to its end now: sends it here, or waits for the one `send` that is under way.
    void finish(const std::shared_ptr<Job>& job);

private:
    static void send(Job& job);
    bool start();
    void run();
    void place();
    void post_turn();
    void turn();
    void end(Job& job);

    const asio::any_io_executor posting_;     // the executor, which never runs what it is given inside the call
    const std::vector<int> cores_;            // that the process may use
    const bool apart_;
    // Of the server's thread.
    int num_in_turn_ = 0;                     // messages since the last turn that saw none
    bool has_sent_ = false;                   // a message came since the last turn
    int core_ = -1;                           // that the second thread keeps off
    bool is_alone_;                           // there is no second thread
    std::thread thread_;                      // from the first message on
    // Guarded.
    std::mutex mutex_;
    std::condition_variable changed_;
    std::deque<std::shared_ptr<Job>> waiting_;
    std::vector<std::shared_ptr<Job>> sent_;  // by the second thread, not yet finished
    bool is_turn_posted_ = false;
    bool is_asleep_ = false;
    bool stopping_ = false;
};

}  // namespace takt::server
