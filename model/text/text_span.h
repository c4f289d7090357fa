#pragma once

#include <string>

namespace shoal::text {

// A piece of a prompt and where it came from. Only template text may become control tokens: a user
// who types "<|im_end|>" gets the ordinary tokens of those ten characters.
struct TextSpan {
  std::string text;          // bytes; a span may begin or end inside a UTF-8 sequence
  bool is_template = false;  // true: the model's chat template (or its bos/eos), false: the user

  friend bool operator==(const TextSpan&, const TextSpan&) = default;
};

}  // namespace shoal::text
