// The angle of a rotation, as exact at positions of 131,072 as at 0. Device code only.
#pragma once

namespace takt::cuda {

/// Sine and cosine of position times frequency. In float32 the product of a position of 131,072 is wrong by up to 4e-3; the CPU takes
/// it in float64. What the product lost is known exactly and small: it turns the result a little further.
__device__ __forceinline__ float2 sine_and_cosine(float position, float frequency) {
    const float angle = position * frequency, lost = fmaf(position, frequency, -angle);
    float sine, cosine;
    sincosf(angle, &sine, &cosine);
    return make_float2(fmaf(lost, cosine, sine), fmaf(-lost, sine, cosine));
}

}   // namespace takt::cuda
