// ShortTurns: a thread that works for microseconds at a time, and is to run at once when it is woken, though all cores compute. The
// kernel lets a thread finish its turn on a core unless who is woken asks for a shorter one; else tokens wait for the next tick, 4 ms.
#pragma once

namespace takt {

/// The calling thread and those that it begins later take turns of a tenth of a millisecond; their share of the cores stays what it was.
/// Linux from 6.12 on; false: the system knows no such thing, or the thread is not an ordinary one (real time, idle).
bool ask_for_short_turns();

}  // namespace takt
