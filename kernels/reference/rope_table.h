#pragma once

namespace shoal::kernels {

// The cosines and sines of rotary embedding (Su et al., RoFormer, 2021): pair i of position p turns
// by
//   p * base^(-2i / rope_dim) / freq_factors[i]   (freq_factors null: 1)
// out [max_positions][rope_dim]: cos, sin of pair 0, of pair 1, ...
//
// Evaluated in double without the C library and without fma, so the table is the same on every
// machine and in every build; angles are good to some 1e-15 relative, entries to the last bit of
// f32 but for ties. REQUIRES: rope_dim even, base > 0, factors > 0, angles below 1.6 million.
void BuildRopeTable(int max_positions, int rope_dim, double base, const float* freq_factors,
                    float* out);

}  // namespace shoal::kernels
