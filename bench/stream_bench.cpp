// A WebSocket reader that costs next to nothing, to load the native door: opens connections, starts streams on them and
// counts what comes until every stream has ended. With --floor a child process that only sends frames of the same size
// over as many loopback sockets takes the server's place: the physical floor of the same exchange. One thread, epoll.
//   stream_bench --port P [--connections C] [--streams S] [--max-tokens N] [--prompt-tokens N] [--extra JSON]
//   stream_bench --floor [--connections C] [--frames N] [--bytes B]
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace {

struct Options {
    int port = 0;
    int connections = 1000;
    int streams = 1;                  // on each connection
    int max_tokens = 256;
    int prompt_tokens = 8;
    std::string extra;                // further fields of generate, as JSON without braces
    bool floor = false;
    long frames = 1000000;            // of the floor, in all
    int bytes = 90;                   // of a floor's frame, payload
};

double now_s() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

[[noreturn]] void fail(const std::string& what) { throw std::runtime_error(what + ": " + std::strerror(errno)); }

struct Connection {
    int fd = -1;
    std::string input;                // bytes not yet read as frames
    int live = 0;                     // streams that have not ended
    bool started = false;             // a delta has come
};

struct Counts {
    long deltas = 0, tokens = 0, errors = 0, bytes = 0;
    double first_s = 0, last_s = 0;
    // While every connection has had a delta and no stream has ended.
    std::size_t num_started = 0;
    long deltas_before = 0, deltas_then = 0;
    double all_from_s = 0, all_to_s = 0;
};

int connect_to(int port) {
    const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
    if (fd < 0) fail("socket");
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<std::uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (::connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) fail("connect");
    const int one = 1;
    ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    return fd;
}

void send_all(int fd, const std::string& bytes) {
    for (std::size_t at = 0; at < bytes.size();) {
        const ssize_t count = ::send(fd, bytes.data() + at, bytes.size() - at, MSG_NOSIGNAL);
        if (count <= 0) fail("send");
        at += static_cast<std::size_t>(count);
    }
}

void upgrade(int fd, int port) {
    send_all(fd, "GET /v1/stream HTTP/1.1\r\nHost: 127.0.0.1:" + std::to_string(port) +
                     "\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
                     "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Protocol: takt.v1\r\n\r\n");
    std::string head;
    char byte = 0;
    while (head.find("\r\n\r\n") == std::string::npos) {
        if (::recv(fd, &byte, 1, 0) != 1) fail("upgrade");
        head += byte;
    }
    if (head.find(" 101 ") == std::string::npos) throw std::runtime_error("not upgraded: " + head);
}

// A client's text frame; the mask is zero, which is a mask like any other.
std::string text_frame(const std::string& text) {
    std::string out = "\x81";
    if (text.size() < 126) {
        out += static_cast<char>(0x80 | text.size());
    } else {
        out += static_cast<char>(0x80 | 126);
        out += static_cast<char>(text.size() >> 8);
        out += static_cast<char>(text.size() & 255);
    }
    return out + std::string(4, '\0') + text;
}

std::string generate_text(const Options& options, int id) {
    std::string out = "{\"type\":\"generate\",\"id\":\"" + std::to_string(id) + "\",\"tokens\":[65";
    for (int i = 1; i < options.prompt_tokens; ++i) out += "," + std::to_string(65 + (id * 7 + i) % 26);
    out += "],\"temperature\":0,\"ignore_eos\":true,\"max_tokens\":" + std::to_string(options.max_tokens);
    return out + (options.extra.empty() ? "" : "," + options.extra) + "}";
}

// Takes whole frames off the front of the connection's bytes.
void take_frames(Connection& connection, Counts& counts, const Options& options, bool floor) {
    std::string_view left = connection.input;
    while (left.size() >= 2) {
        std::size_t head = 2;
        std::size_t length = static_cast<unsigned char>(left[1]) & 127u;
        if (length == 126) {
            if (left.size() < 4) break;
            length = static_cast<unsigned char>(left[2]) * 256u + static_cast<unsigned char>(left[3]);
            head = 4;
        } else if (length == 127) {
            throw std::runtime_error("a frame of more than 64 KiB");
        }
        if (left.size() < head + length) break;
        const std::string_view text = left.substr(head, length);
        left.remove_prefix(head + length);
        if (floor || text.substr(0, 15) == "{\"type\":\"delta\"") {
            ++counts.deltas;
            if (!std::exchange(connection.started, true) && ++counts.num_started == static_cast<std::size_t>(options.connections)) {
                counts.all_from_s = now_s();
                counts.deltas_before = counts.deltas;
            }
        } else if (text.substr(0, 14) == "{\"type\":\"done\"") {
            if (counts.tokens == 0) {
                counts.all_to_s = now_s();
                counts.deltas_then = counts.deltas;
            }
            counts.tokens += options.max_tokens;
            --connection.live;
        } else if (text.substr(0, 15) == "{\"type\":\"error\"") {
            ++counts.errors;
            --connection.live;
        }
    }
    connection.input.erase(0, connection.input.size() - left.size());
}

// Reads everything until no stream is left; a floor's stream ends with its connection.
Counts read_all(std::vector<Connection>& connections, const Options& options, bool floor) {
    Counts counts;
    const int poll = ::epoll_create1(0);
    if (poll < 0) fail("epoll_create1");
    std::size_t open = 0;
    for (std::size_t i = 0; i < connections.size(); ++i) {
        epoll_event event{};
        event.events = EPOLLIN;
        event.data.u64 = i;
        if (::epoll_ctl(poll, EPOLL_CTL_ADD, connections[i].fd, &event) != 0) fail("epoll_ctl");
        ++open;
    }
    std::vector<epoll_event> events(256);
    std::vector<char> buffer(256 * 1024);
    while (open > 0) {
        const int ready = ::epoll_wait(poll, events.data(), static_cast<int>(events.size()), -1);
        for (int i = 0; i < ready; ++i) {
            Connection& connection = connections[events[static_cast<std::size_t>(i)].data.u64];
            const ssize_t count = ::recv(connection.fd, buffer.data(), buffer.size(), MSG_DONTWAIT);
            if (count < 0 && errno == EAGAIN) continue;
            if (count < 0) fail("recv");
            if (counts.deltas == 0) counts.first_s = now_s();
            counts.bytes += count;
            connection.input.append(buffer.data(), static_cast<std::size_t>(count));
            take_frames(connection, counts, options, floor);
            if (count == 0 || (!floor && connection.live == 0)) {
                ::epoll_ctl(poll, EPOLL_CTL_DEL, connection.fd, nullptr);
                --open;
            }
        }
    }
    counts.last_s = now_s();
    ::close(poll);
    return counts;
}

void print(const Options& options, const Counts& counts, double begin_s) {
    const double seconds = counts.last_s - begin_s;
    const double tokens_per_frame = static_cast<double>(counts.tokens) / static_cast<double>(counts.deltas);
    double together = 0;     // tokens a second while all streams flowed; of one stream a connection
    if (counts.all_from_s > 0 && counts.all_to_s > counts.all_from_s) {
        const double seconds_together = counts.all_to_s - counts.all_from_s;
        together = static_cast<double>(counts.deltas_then - counts.deltas_before) * tokens_per_frame / seconds_together;
    }
    std::printf("{\"connections\":%d,\"streams\":%d,\"seconds\":%.4f,\"tokens\":%ld,\"frames\":%ld,\"errors\":%ld,\"bytes\":%ld,"
                "\"tokens_per_s\":%.0f,\"frames_per_s\":%.0f,\"tokens_per_frame\":%.3f,\"bytes_per_frame\":%.1f,"
                "\"together_tokens_per_s\":%.1f}\n",
                options.connections, options.connections * options.streams, seconds, counts.tokens, counts.deltas, counts.errors,
                counts.bytes, static_cast<double>(counts.tokens) / seconds, static_cast<double>(counts.deltas) / seconds,
                tokens_per_frame, static_cast<double>(counts.bytes) / static_cast<double>(counts.deltas), together);
}

// The child: one `send` a frame, round robin, as a server that has nothing else to do.
[[noreturn]] void send_floor(int listener, const Options& options) {
    std::vector<int> peers;
    for (int i = 0; i < options.connections; ++i) {
        const int fd = ::accept(listener, nullptr, nullptr);
        const int one = 1;
        ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
        peers.push_back(fd);
    }
    std::string frame = "\x81";
    frame += static_cast<char>(options.bytes);
    frame += std::string(static_cast<std::size_t>(options.bytes), 'x');
    for (long sent = 0; sent < options.frames; ++sent) {
        const ssize_t count = ::send(peers[static_cast<std::size_t>(sent) % peers.size()], frame.data(), frame.size(), MSG_NOSIGNAL);
        if (count != static_cast<ssize_t>(frame.size())) std::_Exit(1);
    }
    std::_Exit(0);
}

int run_floor(const Options& options) {
    const int listener = ::socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    if (::bind(listener, reinterpret_cast<sockaddr*>(&address), size) != 0 || ::listen(listener, 4096) != 0) fail("listen");
    ::getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size);
    const pid_t child = ::fork();
    if (child == 0) send_floor(listener, options);
    std::vector<Connection> connections(static_cast<std::size_t>(options.connections));
    const double begin_s = now_s();
    for (Connection& connection : connections) connection.fd = connect_to(ntohs(address.sin_port));
    const Counts counts = read_all(connections, options, true);
    int status = 0;
    ::waitpid(child, &status, 0);
    print(options, counts, counts.first_s > 0 ? counts.first_s : begin_s);
    return status == 0 && counts.deltas == options.frames ? 0 : 1;
}

int run(const Options& options) {
    std::vector<Connection> connections(static_cast<std::size_t>(options.connections));
    for (Connection& connection : connections) {
        connection.fd = connect_to(options.port);
        upgrade(connection.fd, options.port);
        connection.live = options.streams;
    }
    const double begin_s = now_s();
    int id = 0;
    for (Connection& connection : connections) {
        std::string bytes;
        for (int i = 0; i < options.streams; ++i) bytes += text_frame(generate_text(options, id++));
        send_all(connection.fd, bytes);
    }
    const Counts counts = read_all(connections, options, false);
    print(options, counts, begin_s);
    return counts.errors == 0 ? 0 : 1;
}

Options read_options(int argc, char** argv) {
    Options out;
    for (int i = 1; i < argc; ++i) {
        const std::string name = argv[i];
        if (name == "--floor") {
            out.floor = true;
            continue;
        }
        if (++i >= argc) throw std::runtime_error(name + " needs a value");
        const std::string value = argv[i];
        if (name == "--extra") out.extra = value;
        else if (name == "--port") out.port = std::stoi(value);
        else if (name == "--connections") out.connections = std::stoi(value);
        else if (name == "--streams") out.streams = std::stoi(value);
        else if (name == "--max-tokens") out.max_tokens = std::stoi(value);
        else if (name == "--prompt-tokens") out.prompt_tokens = std::stoi(value);
        else if (name == "--frames") out.frames = std::stol(value);
        else if (name == "--bytes") out.bytes = std::stoi(value);
        else throw std::runtime_error("unknown option " + name);
    }
    if (out.bytes > 125 || out.connections < 1) throw std::runtime_error("--bytes up to 125, --connections from 1");
    return out;
}

}  // namespace

int main(int argc, char** argv) {
    try {
        const Options options = read_options(argc, argv);
        // `meson test --benchmark` gives no port: the floor alone.
        return options.floor || options.port == 0 ? run_floor(options) : run(options);
    } catch (const std::exception& problem) {
        std::fprintf(stderr, "stream_bench: %s\n", problem.what());
        return 2;
    }
}
