#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "model/text/jinja_lexer.h"

namespace shoal::text::jinja {

// The parsers' place in the tokens of a template.
class TokenStream {
 public:
  // REQUIRES that the last token is kEnd.
  explicit TokenStream(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  const Token& Peek(size_t ahead = 0) const {
    return tokens_[std::min(at_ + ahead, tokens_.size() - 1)];
  }
  // Moves on and returns the token passed; stays at kEnd.
  const Token& Take() {
    const Token& token = Peek();
    at_ += at_ + 1 < tokens_.size();
    return token;
  }

  bool Is(TokenKind kind) const { return Peek().kind == kind; }
  bool IsOperator(absl::string_view op, size_t ahead = 0) const {
    return Peek(ahead).kind == TokenKind::kOperator && Peek(ahead).text == op;
  }
  bool IsName(absl::string_view name) const { return Is(TokenKind::kName) && Peek().text == name; }
  bool TakeOperator(absl::string_view op) { return IsOperator(op) && (Take(), true); }
  bool TakeName(absl::string_view name) { return IsName(name) && (Take(), true); }

  absl::Status Expect(TokenKind kind, absl::string_view what) {
    return Is(kind) ? (Take(), absl::OkStatus()) : Unexpected(what);
  }
  absl::Status ExpectOperator(absl::string_view op) {
    return TakeOperator(op) ? absl::OkStatus() : Unexpected(absl::StrCat("'", op, "'"));
  }

  absl::Status Fail(absl::string_view what) const { return SyntaxError(Peek().line, what); }
  absl::Status Unexpected(absl::string_view expected) const;

 private:
  const std::vector<Token> tokens_;
  size_t at_ = 0;
};

}  // namespace shoal::text::jinja
