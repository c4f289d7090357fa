#pragma once

#include "absl/status/statusor.h"
#include "model/text/jinja_ast.h"
#include "model/text/jinja_token_stream.h"

namespace shoal::text::jinja {

// The expression grammar, lowest precedence first:
//
//   a if b else c | or | and | not | == != < <= > >= in "not in" | + - | ~ | * / // % | ** |
//   unary + - | .name [item] (call) | |filter "is test"
//
// As in jinja2, ** associates to the left and ~ binds closer than +.
class ExpressionParser {
 public:
  explicit ExpressionParser(TokenStream* tokens) : tokens_(*tokens) {}

  absl::StatusOr<ExprPtr> ParseExpression(bool with_if_else = true);

  // One expression, or a tuple if commas follow; ends before "in" and what closes a tag.
  absl::StatusOr<ExprPtr> ParseTuple(bool with_if_else, bool allow_empty = false);

  // `name(args)|name ...` applied to `input`, the first name without its bar.
  absl::StatusOr<ExprPtr> ParseFilters(ExprPtr input);

  // The targets of `set` and `for`.
  absl::StatusOr<Target> ParseTarget(bool allow_attribute);

 private:
  // The left-associative binary operators.
  enum class Level { kOr, kAnd, kSum, kProduct, kPower };

  absl::StatusOr<ExprPtr> ParseIfElse();
  absl::StatusOr<ExprPtr> ParseBinary(Level level);
  absl::StatusOr<ExprPtr> ParseOperand(Level level);
  bool AtOperator(Level level) const;
  absl::StatusOr<ExprPtr> ParseNot();
  absl::StatusOr<ExprPtr> ParseCompare();
  absl::StatusOr<ExprPtr> ParseConcat();
  absl::StatusOr<ExprPtr> ParseUnary(bool with_filters);
  absl::StatusOr<ExprPtr> ParsePrimary();
  absl::StatusOr<ExprPtr> ParseName();
  absl::StatusOr<ExprPtr> ParseNumber();
  absl::StatusOr<ExprPtr> ParseList();
  absl::StatusOr<ExprPtr> ParseDict();
  absl::StatusOr<ExprPtr> ParsePostfix(ExprPtr expr);
  absl::StatusOr<ExprPtr> ParseSubscript(ExprPtr object);
  absl::StatusOr<ExprPtr> ParseFilter(ExprPtr input);
  absl::StatusOr<ExprPtr> ParseTest(ExprPtr input);
  absl::Status ParseArguments(Expr* call);
  bool AtTupleEnd() const;

  // Completes a node: its depth, and the check of it.
  absl::StatusOr<ExprPtr> Finish(ExprPtr expr) const;

  TokenStream& tokens_;
  int depth_ = 0;
};

}  // namespace shoal::text::jinja
