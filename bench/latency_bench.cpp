// From the end of a step on the device to the `send` of its tokens' frames having returned: what the engine and the server add to
// a token. The server runs in this process over the simulated device, whose step records tell when each step ended; this program's
// own send() stands before the system's and notes when each frame's call returned, so the client's waking is not in the figure.
// Beside it, in the same run, what the machine takes for the same with neither engine nor server. Prints one JSON object.
//   latency_bench [STREAMS] [TOKENS] [SCALE of the device's step times]
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <takt/engine.h>
#include <takt/percentiles.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/use_future.hpp>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <future>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "server/server.h"

namespace {

std::uint64_t now_ns() {
    return static_cast<std::uint64_t>(
        std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count());
}

// When the `send` of each frame that holds a token returned, in the order in which they came to be noted. The server's thread writes,
// and its helper.
class SendTimes {
public:
    void note(const char* bytes, std::size_t size) {
        constexpr std::string_view kDelta = R"({"type":"delta")";
        constexpr std::size_t kFrameHead = 2;
        if (size < kFrameHead + kDelta.size() || std::memcmp(bytes + kFrameHead, kDelta.data(), kDelta.size()) != 0) return;
        const std::uint64_t now = now_ns();
        const std::size_t index = count_.fetch_add(1, std::memory_order_acq_rel);
        if (index < times_.size()) times_[index] = now;
    }
    [[nodiscard]] std::size_t count() const { return count_.load(std::memory_order_acquire); }
    void reserve(std::size_t frames) { times_.resize(frames); }
    [[nodiscard]] std::vector<std::uint64_t> take() const {
        std::vector<std::uint64_t> out(times_.begin(), times_.begin() + static_cast<std::ptrdiff_t>(std::min(count(), times_.size())));
        std::sort(out.begin(), out.end());
        return out;
    }

private:
    std::vector<std::uint64_t> times_;
    std::atomic<std::size_t> count_{0};
};

SendTimes send_times;

int connect_stream(int port) {
    const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<std::uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (::connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) throw std::runtime_error("connect");
    const int one = 1;
    ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    const std::string request = "GET /v1/stream HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                                "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n";
    if (::send(fd, request.data(), request.size(), 0) < 0) throw std::runtime_error("send");
    std::string head;
    char byte = 0;
    while (head.find("\r\n\r\n") == std::string::npos && ::recv(fd, &byte, 1, 0) == 1) head += byte;
    if (head.find(" 101 ") == std::string::npos) throw std::runtime_error("not upgraded: " + head);
    return fd;
}

void start_stream(int fd, int tokens) {
    const std::string text = R"({"type":"generate","id":"a","tokens":[65,66,67,68],"temperature":0,"ignore_eos":true,"max_tokens":)" +
                             std::to_string(tokens) + "}";
    std::string frame = "\x81";
    if (text.size() > 125) throw std::runtime_error("a frame longer than its one length byte holds");
    frame += static_cast<char>(0x80 | text.size());
    frame += std::string(4, '\0') + text;
    if (::send(fd, frame.data(), frame.size(), 0) < 0) throw std::runtime_error("send");
}

// Reads until every stream is done, once after each step, when its last frame has been out for a while. A client that slept on its
// sockets would be woken by every `send`, on the server's own cores, and its wakings would be measured; one that reads seldom leaves
// the kernel without used buffers. One on another machine costs the server neither.
void read_streams(const std::vector<int>& sockets) {
    std::vector<char> buffer(65536);
    std::size_t live = sockets.size(), num_before = 0, num_read = 0, num_idle = 0;
    while (live > 0) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
        const std::size_t num_sent = send_times.count();
        const bool is_quiet = num_sent == std::exchange(num_before, num_sent);
        // Now and then also with no frame more: the ends come behind the last.
        if (!is_quiet || (num_sent == num_read && ++num_idle % 64 != 0)) continue;
        num_read = num_sent;
        for (const int fd : sockets) {
            const ssize_t count = ::recv(fd, buffer.data(), buffer.size(), MSG_DONTWAIT);
            if (count < 0 && errno == EAGAIN) continue;
            if (count <= 0) throw std::runtime_error("the server closed: " + std::to_string(count));
            const std::string_view bytes(buffer.data(), static_cast<std::size_t>(count));
            if (bytes.find("\"type\":\"done\"") != std::string_view::npos) --live;
        }
    }
}

// Pairs of sockets of this machine.
class Loopback {
public:
    explicit Loopback(int pairs) {
        const int listener = ::socket(AF_INET, SOCK_STREAM, 0);
        sockaddr_in address{};
        address.sin_family = AF_INET;
        address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        socklen_t size = sizeof(address);
        ::bind(listener, reinterpret_cast<sockaddr*>(&address), size);
        ::listen(listener, 1024);
        ::getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size);
        for (int i = 0; i < pairs; ++i) {
            from_.push_back(::socket(AF_INET, SOCK_STREAM, 0));
            if (::connect(from_.back(), reinterpret_cast<sockaddr*>(&address), size) != 0) throw std::runtime_error("connect");
            const int one = 1;
            ::setsockopt(from_.back(), IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
            to_.push_back(::accept(listener, nullptr, nullptr));
        }
        ::close(listener);
    }
    Loopback(const Loopback&) = delete;
    Loopback& operator=(const Loopback&) = delete;
    ~Loopback() {
        for (const auto& fds : {from_, to_}) {
            for (const int fd : fds) ::close(fd);
        }
    }

    /// A frame's bytes to each, one after the other, nobody asleep on them.
    void send_all() {
        const std::string bytes(70, 'x');
        for (const int fd : from_) {
            if (::send(fd, bytes.data(), bytes.size(), 0) < 0) throw std::runtime_error("send");
        }
    }
    void receive_all() {
        std::vector<char> buffer(4096);
        for (const int fd : to_) {
            if (::recv(fd, buffer.data(), buffer.size(), 0) < 0) throw std::runtime_error("recv");
        }
    }

private:
    std::vector<int> from_, to_;
};

// The floor of the sends: so many one after the other, by a thread that slept before.
std::vector<double> floor_sends_us(int streams) {
    Loopback sockets(streams);
    std::vector<double> out;
    for (int round = 0; round < 200; ++round) {
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
        const std::uint64_t begin = now_ns();
        sockets.send_all();
        out.push_back(static_cast<double>(now_ns() - begin) / 1e3);
        sockets.receive_all();
    }
    return out;
}

// The floor of a token: one thread looks for a moment in time, as the engine does for the device; a second one that sleeps is woken
// through an eventfd and sends one frame. From the moment to the `send` having returned.
std::vector<double> floor_token_us() {
    const int event = ::eventfd(0, 0);
    const int poll = ::epoll_create1(0);
    epoll_event interest{};
    interest.events = EPOLLIN;
    ::epoll_ctl(poll, EPOLL_CTL_ADD, event, &interest);
    Loopback sockets(1);
    std::vector<double> out;
    std::atomic<std::uint64_t> due_ns{0};
    std::atomic<int> num_sent{0};
    constexpr int kRounds = 600;
    std::thread sender([&] {
        for (int i = 0; i < kRounds; ++i) {
            epoll_event ready{};
            ::epoll_wait(poll, &ready, 1, -1);
            std::uint64_t value = 0;
            if (::read(event, &value, sizeof(value)) != sizeof(value)) break;
            sockets.send_all();
            out.push_back(static_cast<double>(now_ns() - due_ns.load()) / 1e3);
            sockets.receive_all();
            num_sent.store(i + 1);
        }
    });
    for (int i = 0; i < kRounds; ++i) {
        while (num_sent.load() < i) std::this_thread::yield();
        due_ns.store(now_ns() + 5'000'000);
        std::this_thread::sleep_for(std::chrono::microseconds(4850));
        while (now_ns() < due_ns.load()) {
        }
        const std::uint64_t one = 1;
        if (::write(event, &one, sizeof(one)) != sizeof(one)) break;
    }
    sender.join();
    ::close(event);
    ::close(poll);
    return out;
}

void print_column(const char* name, std::vector<double> values) {
    std::printf(",\"%s_p50_us\":%.1f,\"%s_p99_us\":%.1f", name, takt::percentile(values, 0.5), name, takt::percentile(values, 0.99));
}

// Of each step that sampled for every stream: how long after its end the `send` of its first and of its last frame returned.
void print(const std::vector<takt::StepRecord>& steps, const std::vector<std::uint64_t>& sends, int streams) {
    std::vector<double> seen, first, last;
    for (std::size_t i = 0; i + 1 < steps.size(); ++i) {
        if (steps[i].num_samples != streams || steps[i].num_prefill_rows > 0) continue;
        const auto begin = std::lower_bound(sends.begin(), sends.end(), steps[i].end_ns);
        const auto end = std::lower_bound(sends.begin(), sends.end(), steps[i + 1].end_ns);
        if (end - begin != streams) continue;     // merged frames belong to no one step
        seen.push_back(static_cast<double>(steps[i].seen_ns - steps[i].end_ns) / 1e3);
        first.push_back(static_cast<double>(*begin - steps[i].end_ns) / 1e3);
        last.push_back(static_cast<double>(*(end - 1) - steps[i].end_ns) / 1e3);
    }
    std::printf("{\"streams\":%d,\"steps\":%zu", streams, first.size());
    print_column("seen", seen);
    print_column("first", first);
    print_column("last", last);
    print_column("floor_token", floor_token_us());
    print_column("floor_sends", floor_sends_us(streams));
    std::printf("}\n");
}

void measure(const takt::server::Server& server, int streams, int tokens) {
    send_times.reserve(static_cast<std::size_t>(streams) * static_cast<std::size_t>(tokens));
    std::vector<int> sockets;
    for (int i = 0; i < streams; ++i) sockets.push_back(connect_stream(server.port()));
    for (const int fd : sockets) start_stream(fd, tokens);
    read_streams(sockets);
    print(server.engine().recorder(), send_times.take(), streams);
    for (const int fd : sockets) ::close(fd);
}

int run(int streams, int tokens, double scale) {
    takt::Config config;
    config.device.kind = "sim";
    config.device.placement = "apart";     // as `takt serve` has it
    config.sim.scale = scale;
    config.log = [](const takt::LogRecord& record) {
        if (record.level >= takt::LogLevel::warning) std::fprintf(stderr, "%s\n", std::string(record.message).c_str());
    };
    config.server.port = 0;
    config.log_section.flight_recorder_steps = tokens + 1000;
    boost::asio::io_context io(1);
    takt::server::Server server(io, config, {}, false);
    server.listen();
    auto loaded = takt::Engine::async_load(io.get_executor(), config, boost::asio::use_future);
    auto work = boost::asio::make_work_guard(io);
    while (loaded.wait_for(std::chrono::seconds(0)) != std::future_status::ready) io.run_one();
    server.set_engine(loaded.get());
    std::thread thread([&io] { io.run(); });
    std::exception_ptr problem;
    try {
        measure(server, streams, tokens);
        boost::asio::co_spawn(io, server.drain(), boost::asio::use_future).get();
    } catch (...) {
        problem = std::current_exception();
    }
    work.reset();
    io.stop();
    thread.join();
    server.release_engine();
    if (problem) std::rethrow_exception(problem);
    return 0;
}

}  // namespace

/// In place of the C library's, for the whole program: the same call, noted.
extern "C" ssize_t send(int fd, const void* bytes, size_t size, int flags) {
    const auto sent = static_cast<ssize_t>(::syscall(SYS_sendto, fd, bytes, size, flags, nullptr, 0));
    if (sent > 0) send_times.note(static_cast<const char*>(bytes), size);
    return sent;
}

int main(int argc, char** argv) {
    try {
        return run(argc > 1 ? std::atoi(argv[1]) : 1, argc > 2 ? std::atoi(argv[2]) : 600, argc > 3 ? std::atof(argv[3]) : 1);
    } catch (const std::exception& problem) {
        std::fprintf(stderr, "latency_bench: %s\n", problem.what());
        return 1;
    }
}
