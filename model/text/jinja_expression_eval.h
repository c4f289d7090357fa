#pragma once

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "model/text/jinja_ast.h"
#include "model/text/jinja_context.h"
#include "model/text/jinja_value.h"

namespace shoal::text::jinja {

// Runs a macro's body: the one thing expressions need of the statements.
class MacroRunner {
 public:
  virtual ~MacroRunner() = default;
  // `scope` holds the arguments. Returns the text.
  virtual absl::StatusOr<Value> RunMacro(const Stmt& macro, Scope* scope) = 0;
};

// Evaluates expressions. References outlive it.
class ExpressionEvaluator {
 public:
  ExpressionEvaluator(Context& context, const Dict& inputs, MacroRunner& macros)
      : context_(context), inputs_(inputs), macros_(macros) {}

  absl::StatusOr<Value> Eval(const Expr& expr, Scope* scope);

  // A variable of the scope or those around it, an input, or a global; undefined if none.
  Value Lookup(absl::string_view name, const Scope* scope);

 private:
  absl::StatusOr<std::vector<Value>> EvalAll(const Expr& expr, size_t first, Scope* scope);
  absl::StatusOr<Value> EvalDict(const Expr& expr, Scope* scope);
  absl::StatusOr<Value> EvalSlice(const Expr& expr, Scope* scope);
  absl::StatusOr<Value> EvalCall(const Expr& expr, Scope* scope);
  absl::StatusOr<Value> EvalNative(const Expr& expr, Scope* scope);
  absl::StatusOr<Value> EvalBinary(const Expr& expr, Scope* scope);
  absl::StatusOr<Value> EvalUnary(const Expr& expr, Scope* scope);
  absl::StatusOr<Value> EvalConcat(const Expr& expr, Scope* scope);
  absl::StatusOr<Value> EvalCompare(const Expr& expr, Scope* scope);
  absl::StatusOr<Value> EvalIfElse(const Expr& expr, Scope* scope);
  absl::StatusOr<Value> CallMacro(const Function& function, const Arguments& args);

  Context& context_;
  const Dict& inputs_;
  MacroRunner& macros_;
};

}  // namespace shoal::text::jinja
