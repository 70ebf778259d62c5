// From the end of a step on the device to its tokens' frames having passed through `send`: what the engine and the server
// add to a token. The server runs in this process over the simulated device, whose step records tell when each step ended;
// the kernel stamps each frame when it reaches the other side of the loopback socket, which happens inside `send`, so the
// client's own waking is not in the figure. Prints one JSON object.
//   latency_bench [STREAMS] [TOKENS]
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
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
#include <map>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "server/server.h"

namespace {

std::uint64_t now_ns() {
    return static_cast<std::uint64_t>(
        std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count());
}

// The system clock less the steady one: kernel stamps are of the system clock. The closest of many looks.
std::int64_t clock_offset_ns() {
    std::int64_t best_width = INT64_MAX, best = 0;
    for (int i = 0; i < 1000; ++i) {
        const auto before = static_cast<std::int64_t>(now_ns());
        const std::int64_t system = std::chrono::duration_cast<std::chrono::nanoseconds>(
                                        std::chrono::system_clock::now().time_since_epoch()).count();
        const auto after = static_cast<std::int64_t>(now_ns());
        if (after - before >= best_width) continue;
        best_width = after - before;
        best = system - (before + after) / 2;
    }
    return best;
}

// Reads into `buffer`; `stamp_ns` becomes the kernel's stamp of the last byte, 0 without one.
ssize_t receive_stamped(int fd, std::vector<char>& buffer, std::int64_t& stamp_ns) {
    std::array<char, 256> control{};
    iovec part{buffer.data(), buffer.size()};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    const ssize_t count = ::recvmsg(fd, &message, MSG_DONTWAIT);
    stamp_ns = 0;
    for (cmsghdr* one = CMSG_FIRSTHDR(&message); one != nullptr; one = CMSG_NXTHDR(&message, one)) {
        if (one->cmsg_level != SOL_SOCKET || one->cmsg_type != SO_TIMESTAMPNS) continue;
        timespec stamp{};
        std::memcpy(&stamp, CMSG_DATA(one), sizeof(stamp));
        stamp_ns = stamp.tv_sec * 1'000'000'000 + stamp.tv_nsec;
    }
    return count;
}

int connect_stream(int port) {
    const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<std::uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (::connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) throw std::runtime_error("connect");
    const int one = 1;
    ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    ::setsockopt(fd, SOL_SOCKET, SO_TIMESTAMPNS, &one, sizeof(one));
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

// When each delta of any stream arrived, in order, until every stream is done. The kernel stamps the arrivals, so the client looks
// for them in rounds between steps: a client that slept on its sockets would be woken by every `send`, on the server's own cores,
// and its wakings would be measured. One on another machine costs the server nothing.
std::vector<std::uint64_t> read_streams(const std::vector<int>& sockets) {
    std::vector<std::uint64_t> out;
    const std::int64_t offset_ns = clock_offset_ns();
    std::size_t live = sockets.size();
    std::vector<char> buffer(65536);
    while (live > 0) {
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
        for (const int fd : sockets) {
            std::int64_t stamp_ns = 0;
            const ssize_t count = receive_stamped(fd, buffer, stamp_ns);
            if (count < 0 && errno == EAGAIN) continue;
            if (count <= 0) throw std::runtime_error("the server closed: " + std::to_string(count));
            const std::string_view bytes(buffer.data(), static_cast<std::size_t>(count));
            if (bytes.find("\"type\":\"delta\"") != std::string_view::npos) out.push_back(static_cast<std::uint64_t>(stamp_ns - offset_ns));
            if (bytes.find("\"type\":\"done\"") != std::string_view::npos) --live;
        }
    }
    std::sort(out.begin(), out.end());
    return out;
}

// The floor: from a write to an eventfd to a thread that slept on it being awake; two such wakings lie in every token's way
// at most, the engine's and the server's.
double wake_p50_us() {
    const int event = ::eventfd(0, 0);
    const int poll = ::epoll_create1(0);
    epoll_event interest{};
    interest.events = EPOLLIN;
    ::epoll_ctl(poll, EPOLL_CTL_ADD, event, &interest);
    std::vector<double> out;
    std::atomic<std::uint64_t> sent{0};
    std::atomic<int> num_seen{0};
    constexpr int kRounds = 200;
    std::thread sleeper([&] {
        for (int i = 0; i < kRounds; ++i) {
            epoll_event ready{};
            ::epoll_wait(poll, &ready, 1, -1);
            out.push_back(static_cast<double>(now_ns() - sent.load()) / 1e3);
            std::uint64_t value = 0;
            if (::read(event, &value, sizeof(value)) != sizeof(value)) break;
            num_seen.store(i + 1);
        }
    });
    for (int i = 0; i < kRounds; ++i) {
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
        while (num_seen.load() < i) std::this_thread::yield();
        const std::uint64_t one = 1;
        sent.store(now_ns());
        if (::write(event, &one, sizeof(one)) != sizeof(one)) break;
    }
    sleeper.join();
    ::close(event);
    ::close(poll);
    return takt::percentile(out, 0.5);
}

// The floor of the sends: a frame's bytes to each of so many sockets of this machine one after the other, nobody asleep on them.
double sends_p50_us(int streams) {
    const int listener = ::socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    ::bind(listener, reinterpret_cast<sockaddr*>(&address), size);
    ::listen(listener, 1024);
    ::getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size);
    std::vector<int> from, to;
    for (int i = 0; i < streams; ++i) {
        from.push_back(::socket(AF_INET, SOCK_STREAM, 0));
        if (::connect(from.back(), reinterpret_cast<sockaddr*>(&address), size) != 0) throw std::runtime_error("connect");
        const int one = 1;
        ::setsockopt(from.back(), IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
        to.push_back(::accept(listener, nullptr, nullptr));
    }
    const std::string bytes(70, 'x');
    std::vector<char> buffer(4096);
    std::vector<double> out;
    for (int round = 0; round < 200; ++round) {
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
        const std::uint64_t begin = now_ns();
        for (const int fd : from) {
            if (::send(fd, bytes.data(), bytes.size(), 0) < 0) throw std::runtime_error("send");
        }
        out.push_back(static_cast<double>(now_ns() - begin) / 1e3);
        for (const int fd : to) {
            if (::recv(fd, buffer.data(), buffer.size(), 0) < 0) throw std::runtime_error("recv");
        }
    }
    for (const auto& fds : {from, to}) {
        for (const int fd : fds) ::close(fd);
    }
    ::close(listener);
    return takt::percentile(out, 0.5);
}

// Of each step that sampled for every stream: how long after its end its first and its last frame were sent.
void print(const std::vector<takt::StepRecord>& steps, const std::vector<std::uint64_t>& reads, int streams) {
    std::vector<double> seen, first, last;
    for (std::size_t i = 0; i + 1 < steps.size(); ++i) {
        if (steps[i].num_samples != streams || steps[i].num_prefill_rows > 0) continue;
        const auto begin = std::lower_bound(reads.begin(), reads.end(), steps[i].end_ns);
        const auto end = std::lower_bound(reads.begin(), reads.end(), steps[i + 1].end_ns);
        if (end - begin != streams) continue;     // a merged or split read belongs to no one step
        seen.push_back(static_cast<double>(steps[i].seen_ns - steps[i].end_ns) / 1e3);
        first.push_back(static_cast<double>(*begin - steps[i].end_ns) / 1e3);
        last.push_back(static_cast<double>(*(end - 1) - steps[i].end_ns) / 1e3);
    }
    std::printf("{\"streams\":%d,\"steps\":%zu", streams, first.size());
    const std::pair<const char*, std::vector<double>*> columns[] = {{"seen", &seen}, {"first", &first}, {"last", &last}};
    for (const auto& [name, values] : columns) {
        std::printf(",\"%s_p50_us\":%.1f,\"%s_p99_us\":%.1f", name, takt::percentile(*values, 0.5), name, takt::percentile(*values, 0.99));
    }
    std::printf(",\"floor_wake_p50_us\":%.1f,\"floor_sends_p50_us\":%.1f}\n", wake_p50_us(), sends_p50_us(streams));
}

void measure(const takt::server::Server& server, int streams, int tokens) {
    std::vector<int> sockets;
    for (int i = 0; i < streams; ++i) sockets.push_back(connect_stream(server.port()));
    for (const int fd : sockets) start_stream(fd, tokens);
    const std::vector<std::uint64_t> reads = read_streams(sockets);
    print(server.engine().recorder(), reads, streams);
    for (const int fd : sockets) ::close(fd);
}

int run(int streams, int tokens) {
    takt::Config config;
    config.device.kind = "sim";
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

int main(int argc, char** argv) {
    try {
        return run(argc > 1 ? std::atoi(argv[1]) : 1, argc > 2 ? std::atoi(argv[2]) : 600);
    } catch (const std::exception& problem) {
        std::fprintf(stderr, "latency_bench: %s\n", problem.what());
        return 1;
    }
}
