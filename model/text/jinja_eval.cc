#include "model/text/jinja_eval.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "model/text/jinja_expression_eval.h"
#include "model/text/jinja_operators.h"
#include "model/text/jinja_print.h"

namespace shoal::text::jinja {
namespace {

class Interpreter : public MacroRunner {
 public:
  Interpreter(Context& context, const Dict& inputs)
      : context_(context), expressions_(context, inputs, *this) {}

  absl::Status Run(const Body& body, MarkedString* out) {
    return RunBody(body, context_.NewScope(nullptr), out).status();
  }
  absl::StatusOr<Value> RunMacro(const Stmt& macro, Scope* scope) override;

  int line() const { return line_; }

 private:
  enum class Flow { kNext, kBreak, kContinue };

  absl::StatusOr<Flow> RunBody(const Body& body, Scope* scope, MarkedString* out);
  absl::StatusOr<Flow> RunStmt(const Stmt& stmt, Scope* scope, MarkedString* out);
  absl::StatusOr<Flow> RunIf(const Stmt& stmt, Scope* scope, MarkedString* out);
  absl::StatusOr<Flow> RunFor(const Stmt& stmt, Scope* scope, MarkedString* out);
  absl::StatusOr<Flow> RunCapture(const Stmt& stmt, Scope* scope, MarkedString* out);
  absl::StatusOr<std::vector<Value>> LoopItems(const Stmt& stmt, Scope* scope);
  absl::Status Assign(const Target& target, const Value& value, Scope* scope);
  absl::Status Print(const Value& value, MarkedString* out);
  absl::Status Append(const MarkedString& text, MarkedString* out);

  Context& context_;
  ExpressionEvaluator expressions_;
  int line_ = 1;  // of the last statement begun
};

absl::StatusOr<Value> Interpreter::RunMacro(const Stmt& macro, Scope* scope) {
  MarkedString text;
  SHOAL_RETURN_IF_ERROR(RunBody(macro.body, scope, &text).status());
  return context_.NewString(std::move(text));
}

absl::StatusOr<Interpreter::Flow> Interpreter::RunBody(const Body& body, Scope* scope,
                                                       MarkedString* out) {
  Nesting nesting(context_);
  for (const auto& stmt : body) {
    SHOAL_RETURN_IF_ERROR(nesting.Check());
    line_ = stmt->line;
    SHOAL_ASSIGN_OR_RETURN(const Flow flow, RunStmt(*stmt, scope, out));
    if (flow != Flow::kNext) {
      return flow;
    }
  }
  return Flow::kNext;
}

absl::StatusOr<Interpreter::Flow> Interpreter::RunStmt(const Stmt& stmt, Scope* scope,
                                                       MarkedString* out) {
  switch (stmt.kind) {
    case StmtKind::kText:
      SHOAL_RETURN_IF_ERROR(Append(stmt.text, out));
      return Flow::kNext;
    case StmtKind::kPrint: {
      SHOAL_ASSIGN_OR_RETURN(const Value value, expressions_.Eval(*stmt.expr, scope));
      SHOAL_RETURN_IF_ERROR(Print(value, out));
      return Flow::kNext;
    }
    case StmtKind::kIf:
      return RunIf(stmt, scope, out);
    case StmtKind::kFor:
      return RunFor(stmt, scope, out);
    case StmtKind::kSet: {
      SHOAL_ASSIGN_OR_RETURN(const Value value, expressions_.Eval(*stmt.expr, scope));
      SHOAL_RETURN_IF_ERROR(Assign(stmt.target, value, scope));
      return Flow::kNext;
    }
    case StmtKind::kCapture:
    case StmtKind::kFilterBlock:
      return RunCapture(stmt, scope, out);
    case StmtKind::kMacro:
      scope->Capture();
      scope->Set(stmt.name, context_.NewFunction({&stmt, scope, nullptr, Value()}));
      return Flow::kNext;
    case StmtKind::kScope:
      return RunBody(stmt.body, context_.NewScope(scope), out);
    case StmtKind::kBreak:
      return Flow::kBreak;
    case StmtKind::kContinue:
      return Flow::kContinue;
  }
  return Flow::kNext;
}

absl::StatusOr<Interpreter::Flow> Interpreter::RunIf(const Stmt& stmt, Scope* scope,
                                                     MarkedString* out) {
  for (const Branch& branch : stmt.branches) {
    bool holds = true;
    if (branch.condition != nullptr) {
      SHOAL_ASSIGN_OR_RETURN(const Value value, expressions_.Eval(*branch.condition, scope));
      holds = value.IsTrue();
    }
    if (holds) {
      return RunBody(branch.body, scope, out);
    }
  }
  return Flow::kNext;
}

// The items to loop over, those that the loop's condition refuses left out.
absl::StatusOr<std::vector<Value>> Interpreter::LoopItems(const Stmt& stmt, Scope* scope) {
  SHOAL_ASSIGN_OR_RETURN(const Value iterable, expressions_.Eval(*stmt.expr, scope));
  SHOAL_ASSIGN_OR_RETURN(std::vector<Value> all, Iterate(context_, iterable));
  if (stmt.condition == nullptr) {
    return all;
  }
  std::vector<Value> kept;
  for (const Value& item : all) {
    Scope* test_scope = context_.NewScope(scope);
    SHOAL_RETURN_IF_ERROR(Assign(stmt.target, item, test_scope));
    SHOAL_ASSIGN_OR_RETURN(const Value keep, expressions_.Eval(*stmt.condition, test_scope));
    if (keep.IsTrue()) {
      kept.push_back(item);
    }
  }
  return kept;
}

absl::StatusOr<Interpreter::Flow> Interpreter::RunFor(const Stmt& stmt, Scope* scope,
                                                      MarkedString* out) {
  SHOAL_ASSIGN_OR_RETURN(std::vector<Value> kept, LoopItems(stmt, scope));
  if (kept.empty()) {
    return RunBody(stmt.else_body, context_.NewScope(scope), out);
  }
  const absl::Span<const Value> items = context_.NewList(std::move(kept)).items();
  const Value loop = context_.NewLoop({items, 0, false, {}});
  Scope* turn = nullptr;
  for (size_t i = 0; i < items.size(); ++i) {
    loop.AsLoop().index0 = i;
    if (turn == nullptr || turn->is_captured) {
      turn = context_.NewScope(scope);
    }
    turn->variables.clear();
    turn->Set("loop", loop);
    SHOAL_RETURN_IF_ERROR(Assign(stmt.target, items[i], turn));
    SHOAL_ASSIGN_OR_RETURN(const Flow flow, RunBody(stmt.body, turn, out));
    SHOAL_RETURN_IF_ERROR(context_.Step());
    if (flow == Flow::kBreak) {
      break;
    }
  }
  return Flow::kNext;
}

absl::StatusOr<Interpreter::Flow> Interpreter::RunCapture(const Stmt& stmt, Scope* scope,
                                                          MarkedString* out) {
  MarkedString text;
  Scope* inner = context_.NewScope(scope);
  SHOAL_ASSIGN_OR_RETURN(const Flow flow, RunBody(stmt.body, inner, &text));
  if (flow != Flow::kNext) {
    return flow;  // as in jinja2, leaving the block drops its text
  }
  Value value = context_.NewString(std::move(text));
  if (stmt.expr != nullptr) {
    Scope* filter_scope = context_.NewScope(scope);
    filter_scope->Set(kCaptured, value);
    SHOAL_ASSIGN_OR_RETURN(value, expressions_.Eval(*stmt.expr, filter_scope));
  }
  SHOAL_RETURN_IF_ERROR(stmt.kind == StmtKind::kCapture ? Assign(stmt.target, value, scope)
                                                        : Print(value, out));
  return Flow::kNext;
}

absl::Status Interpreter::Assign(const Target& target, const Value& value, Scope* scope) {
  if (!target.parts.empty()) {
    SHOAL_ASSIGN_OR_RETURN(const std::vector<Value> items, Iterate(context_, value));
    if (items.size() != target.parts.size()) {
      return absl::InvalidArgumentError(absl::StrCat("cannot put ", items.size(), " values into ",
                                                     target.parts.size(), " variables"));
    }
    for (size_t i = 0; i < items.size(); ++i) {
      SHOAL_RETURN_IF_ERROR(Assign(target.parts[i], items[i], scope));
    }
    return absl::OkStatus();
  }
  if (target.attribute.empty()) {
    scope->Set(target.name, value);
    return absl::OkStatus();
  }
  const Value object = expressions_.Lookup(target.name, scope);
  if (!object.is(Kind::kNamespace)) {
    return absl::InvalidArgumentError(absl::StrCat("'", target.name, "' is no namespace, so '",
                                                   target.name, ".", target.attribute,
                                                   "' cannot be set"));
  }
  const Value key = context_.NewString(MarkedString(target.attribute, Origin::kTemplate));
  object.AsNamespace().attributes.Set(key, value);
  return absl::OkStatus();
}

absl::Status Interpreter::Print(const Value& value, MarkedString* out) {
  if (value.is_undefined()) {
    return absl::OkStatus();
  }
  SHOAL_ASSIGN_OR_RETURN(const Value text, ToStringValue(context_, value));
  return Append(text.AsString(), out);
}

absl::Status Interpreter::Append(const MarkedString& text, MarkedString* out) {
  SHOAL_RETURN_IF_ERROR(context_.Reserve(out->size() + text.size()));
  context_.Charge(text.MemoryBytes());
  context_.Work(text.size());
  out->Append(text);
  return absl::OkStatus();
}

}  // namespace

absl::Status Render(const Body& body, const Dict& inputs, Context& context, MarkedString* out) {
  Interpreter interpreter(context, inputs);
  const absl::Status status = interpreter.Run(body, out);
  if (status.ok() || context.raised()) {
    return status;
  }
  return absl::Status(status.code(), absl::StrCat("chat template, line ", interpreter.line(), ": ",
                                                  status.message()));
}

}  // namespace shoal::text::jinja
