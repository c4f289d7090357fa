#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace shoal::text::jinja {

enum class TokenKind {
  kText,  // template text between tags, white space control already applied
  kVariableBegin,
  kVariableEnd,
  kBlockBegin,
  kBlockEnd,
  kName,
  kString,  // text is the decoded value
  kInteger,
  kFloat,
  kOperator,  // text is the operator
  kEnd
};

struct Token {
  TokenKind kind;
  std::string text;
  int line;  // from 1
};

// Splits a template into tokens as jinja2 does with trim_blocks, lstrip_blocks and without
// keep_trailing_newline; comments and raw blocks are resolved here. The last token is kEnd.
// INVALID_ARGUMENT names the line of an unclosed tag, comment, raw block, string or bracket.
absl::StatusOr<std::vector<Token>> Tokenize(absl::string_view source);

// An INVALID_ARGUMENT for a fault in the template's source.
absl::Status SyntaxError(int line, absl::string_view what);

}  // namespace shoal::text::jinja
