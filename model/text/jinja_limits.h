#pragma once

#include <cstddef>
#include <cstdint>

namespace shoal::text {

// What one rendering of a chat template may use. The defaults leave room for a conversation of a
// million tokens; a template that needs more is broken or hostile. Exceeding a limit ends the
// rendering with INVALID_ARGUMENT.
struct TemplateLimits {
  int64_t max_steps = 5'000'000;  // expressions, statements and items; ~1 s of one core
  int max_depth = 400;  // nested expressions, blocks, calls and values; takes 512 KiB of stack
  size_t max_output_bytes = size_t{32} << 20;  // the prompt, and any single string on the way to it
  size_t max_memory_bytes = size_t{256} << 20;  // all values made, none of which is freed earlier
};

}  // namespace shoal::text
