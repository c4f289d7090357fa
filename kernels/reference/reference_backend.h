#pragma once

#include <memory>

#include "kernels/backend.h"

namespace shoal::kernels {

// The op table as plain loops in double: the oracle of every kernel test; also runs constant
// folding. Slow. One thread.
std::unique_ptr<Backend> NewReferenceBackend();

}  // namespace shoal::kernels
