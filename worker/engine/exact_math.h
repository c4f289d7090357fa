#pragma once

namespace shoal::worker {

// exp and log in double, made of IEEE additions, multiplications and bit moves alone: the C
// library's choose other instructions on other processors, and one token drawn differently breaks
// the promise of same request, same bits. Relative error below 1e-15 * 4.

// REQUIRES: x is not NaN. Underflows to 0 below -708, overflows to +inf above 709.
double ExactExp(double x);

// REQUIRES: x > 0 and finite (normal).
double ExactLog(double x);

}  // namespace shoal::worker
