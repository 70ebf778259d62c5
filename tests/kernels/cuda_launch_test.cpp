// Which cards run the kernels that came with Hopper: by what the card has and by what the code there was written for.
#include "catch.h"
#include "kernels/cuda/ops_launch.h"

using takt::cuda::has_tensor_copies;

TEST_CASE("tensor copies need the card, its shared memory and code written for them") {
    constexpr int kHopper = 227 * 1024, kAmpere = 163 * 1024, kAda = 99 * 1024;
    CHECK(has_tensor_copies(9, kHopper, 90));
    CHECK(has_tensor_copies(10, kHopper, 100));
    CHECK(has_tensor_copies(10, kHopper, 90));   // PTX of 9.0 on a later card
    CHECK(has_tensor_copies(9, kHopper, 0));
    CHECK_FALSE(has_tensor_copies(8, kAmpere, 80));
    CHECK_FALSE(has_tensor_copies(8, kAda, 89));
    CHECK_FALSE(has_tensor_copies(10, kHopper, 80));   // PTX of 8.0: the kernels' bodies are not in it
    CHECK_FALSE(has_tensor_copies(9, kHopper, 89));
    CHECK_FALSE(has_tensor_copies(12, kAda, 120));
    CHECK_FALSE(has_tensor_copies(0, 0, 0));
}
