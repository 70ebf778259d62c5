// Credit: how many tokens a stream may still send, and cutting a chunk where the credit ends. Pure.
#pragma once

#include <takt/request.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace takt::server {

using Detokenize = std::function<std::string(const std::vector<std::int32_t>&)>;

/// Takes the longest piece of at most `budget` (1 up) tokens off the front of `chunk` whose text ends at a character. Where
/// none of that size does (a character spread over more tokens), the shortest longer one: it cannot be divided.
Chunk take_front(Chunk& chunk, std::int64_t budget, const Detokenize& detokenize);

}  // namespace takt::server
