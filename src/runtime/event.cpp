// Polling of device events; see event.h.
#include "runtime/event.h"


#include <boost/asio/append.hpp>
#include <boost/asio/post.hpp>
#include <algorithm>
#include <iterator>

#include "kernels/assert.h"

namespace takt {

void EventQueue::add(Event event, Handler handler) {
    auto line = std::find_if(streams_.begin(), streams_.end(),
                             [&](const Line& l) { return l.stream->id() == event.stream_id; });
    TAKT_ASSERT(line != streams_.end());
    auto at = line->waiters.end();
    while (at != line->waiters.begin() && std::prev(at)->value > event.value) --at;
    line->waiters.emplace(at, event.value, std::move(handler));
}

bool EventQueue::poll() {
    bool any = false;
    for (Line& line : streams_) {
        if (line.waiters.empty()) continue;
        const uint64_t completed = line.stream->completed();
        while (!line.waiters.empty() && line.waiters.front().value <= completed) {
            Handler handler = std::move(line.waiters.front().handler);
            line.waiters.pop_front();
            net::post(io_, net::append(std::move(handler), line.stream->error()));
            any = true;
        }
    }
    return any;
}

bool EventQueue::empty() const {
    return std::all_of(streams_.begin(), streams_.end(), [](const Line& l) { return l.waiters.empty(); });
}

}  // namespace takt
