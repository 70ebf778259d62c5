// The names, signatures and defaults of the library that users rely on: this file no longer compiles if one of them changes.
#include <takt/takt.h>

#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/use_future.hpp>
#include <chrono>
#include <future>
#include <tuple>
#include <type_traits>
#include <utility>

namespace {

using namespace takt;
namespace asio = boost::asio;

template <class A, class B>
constexpr bool same = std::is_same_v<A, B>;

// Handles: movable, not copyable, cheap to make empty.
template <class T>
constexpr bool is_handle =
    std::is_nothrow_move_constructible_v<T> && std::is_nothrow_move_assignable_v<T> && !std::is_copy_constructible_v<T>;
static_assert(is_handle<Engine> && is_handle<Reply>);

// What each operation completes with, by three completion tokens.
using Future = decltype(Engine::async_load(std::declval<asio::any_io_executor>(), std::declval<Config>(), asio::use_future));
static_assert(same<Future, std::future<Engine>>);
static_assert(same<decltype(std::declval<Engine&>().async_submit(std::declval<Request>(), asio::use_future)), std::future<Reply>>);
static_assert(same<decltype(std::declval<Engine&>().async_submit(std::declval<Request>(), asio::use_awaitable)), asio::awaitable<Reply>>);
static_assert(same<decltype(std::declval<Reply&>().async_next(asio::use_future)), std::future<std::optional<Chunk>>>);
static_assert(same<decltype(std::declval<Reply&>().async_next(asio::use_awaitable)), asio::awaitable<std::optional<Chunk>>>);
using When = std::chrono::steady_clock::time_point;
static_assert(same<decltype(std::declval<Engine&>().async_drain(std::declval<When>(), asio::use_future)), std::future<void>>);

// Snapshots and pure calls are const: any thread may make them.
static_assert(same<decltype(std::declval<const Engine&>().metrics()), MetricsSnapshot>);
static_assert(same<decltype(std::declval<const Engine&>().health()), HealthSnapshot>);
static_assert(same<decltype(std::declval<const Engine&>().model()), ModelInfo>);
static_assert(same<decltype(std::declval<const Engine&>().recorder()), std::vector<StepRecord>>);
static_assert(same<decltype(std::declval<const Engine&>().tokenize("")), std::vector<int32_t>>);
static_assert(same<decltype(std::declval<const Engine&>().detokenize({})), std::string>);
static_assert(same<decltype(std::declval<const Engine&>().render({})), std::string>);
static_assert(same<decltype(std::declval<const Reply&>().result()), std::optional<RequestResult>>);

// What the commands do.
static_assert(same<decltype(inspect("")), ModelReport> && same<decltype(plan_memory({})), MemoryPlan>);
static_assert(same<decltype(quantize("", "", "")), QuantizeReport> && same<decltype(takt::profile({})), std::string>);
static_assert(same<decltype(simulate({}, {}, {})), std::vector<SimulateResult>>);
static_assert(same<decltype(load_config("", {})), Config> && same<decltype(read_trace("")), Trace>);

// Errors: one category, and load_error is a system_error.
static_assert(std::is_base_of_v<boost::system::system_error, load_error> && std::is_base_of_v<load_error, config_error>);
static_assert(std::is_constructible_v<boost::system::error_code, errc>);

// Fields by name.
[[maybe_unused]] void name_the_fields(Config& config, Request& request, const Chunk& chunk, const RequestResult& result) {
    config.model.path = "model.gguf";
    config.sla.itl_ms = 40;
    config.log = [](const LogRecord&) {};
    request.prompt = "";
    request.messages = boost::json::array();
    request.tokens = std::vector<int32_t>();
    request.max_tokens = 1;
    request.sampling.temperature = request.sampling.top_p = 1.0;
    request.sampling.seed = uint64_t{1};
    request.stop = {"x"};
    request.ignore_eos = request.parse_special = true;
    request.tools = boost::json::array();
    request.chat_template_kwargs = boost::json::object();
    request.sla_class = request.tenant = request.domain = "";
    request.ttft_ms = request.itl_ms = request.deadline_ms = 1.0;
    (void)std::tie(chunk.index, chunk.text, chunk.tokens, chunk.logprobs);
    (void)std::tie(result.reason, result.usage.prompt_tokens, result.usage.completion_tokens, result.usage.cached_tokens);
    (void)std::tie(result.timings, result.seed);
}

}  // namespace
