#include "model/text/jinja_expression_eval.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "model/text/jinja_access.h"
#include "model/text/jinja_operators.h"
#include "model/text/jinja_text.h"

namespace shoal::text::jinja {
namespace {

using Result = absl::StatusOr<Value>;

}  // namespace

Value ExpressionEvaluator::Lookup(absl::string_view name, const Scope* scope) {
  for (; scope != nullptr; scope = scope->parent) {
    for (const NamedValue& variable : scope->variables) {
      if (variable.first == name) {
        return variable.second;
      }
    }
  }
  if (const Value* input = inputs_.Find(name); input != nullptr) {
    return *input;
  }
  if (const Native* global = FindGlobal(name); global != nullptr) {
    return context_.NewFunction({nullptr, nullptr, global, Value()});
  }
  return context_.NewUndefined(absl::StrCat("'", name, "' is undefined"));
}

Result ExpressionEvaluator::Eval(const Expr& expr, Scope* scope) {
  Nesting nesting(context_);
  SHOAL_RETURN_IF_ERROR(nesting.Check());
  switch (expr.kind) {
    case ExprKind::kConst:
      return expr.constant;
    case ExprKind::kString:
      return Value::String(&expr.text);
    case ExprKind::kName:
      return Lookup(expr.name, scope);
    case ExprKind::kList:
    case ExprKind::kTuple: {
      SHOAL_ASSIGN_OR_RETURN(std::vector<Value> items, EvalAll(expr, 0, scope));
      return expr.kind == ExprKind::kList ? context_.NewList(std::move(items))
                                          : context_.NewTuple(std::move(items));
    }
    case ExprKind::kDict:
      return EvalDict(expr, scope);
    case ExprKind::kAttr: {
      SHOAL_ASSIGN_OR_RETURN(const Value object, Eval(*expr.args[0], scope));
      return GetAttribute(context_, object, expr.name);
    }
    case ExprKind::kItem: {
      SHOAL_ASSIGN_OR_RETURN(const Value object, Eval(*expr.args[0], scope));
      SHOAL_ASSIGN_OR_RETURN(const Value key, Eval(*expr.args[1], scope));
      return GetItem(context_, object, key);
    }
    case ExprKind::kSlice:
      return EvalSlice(expr, scope);
    case ExprKind::kCall:
      return EvalCall(expr, scope);
    case ExprKind::kFilter:
    case ExprKind::kTest:
      return EvalNative(expr, scope);
    case ExprKind::kUnary:
      return EvalUnary(expr, scope);
    case ExprKind::kBinary:
      return EvalBinary(expr, scope);
    case ExprKind::kConcat:
      return EvalConcat(expr, scope);
    case ExprKind::kCompare:
      return EvalCompare(expr, scope);
    case ExprKind::kIfElse:
      return EvalIfElse(expr, scope);
  }
  return Value();
}

absl::StatusOr<std::vector<Value>> ExpressionEvaluator::EvalAll(const Expr& expr, size_t first,
                                                                Scope* scope) {
  std::vector<Value> values;
  for (size_t i = first; i < expr.args.size(); ++i) {
    SHOAL_ASSIGN_OR_RETURN(const Value value, Eval(*expr.args[i], scope));
    values.push_back(value);
  }
  return values;
}

Result ExpressionEvaluator::EvalDict(const Expr& expr, Scope* scope) {
  SHOAL_ASSIGN_OR_RETURN(const std::vector<Value> values, EvalAll(expr, 0, scope));
  Dict dict;
  for (size_t i = 0; i < values.size(); i += 2) {
    SHOAL_RETURN_IF_ERROR(SetEntry(context_, values[i], values[i + 1], &dict));
  }
  return context_.NewDict(std::move(dict));
}

Result ExpressionEvaluator::EvalSlice(const Expr& expr, Scope* scope) {
  SHOAL_ASSIGN_OR_RETURN(const Value object, Eval(*expr.args[0], scope));
  Value bounds[3];
  const Value* given[3] = {};
  for (size_t i = 0; i < 3; ++i) {
    if (expr.args[i + 1] != nullptr) {
      SHOAL_ASSIGN_OR_RETURN(bounds[i], Eval(*expr.args[i + 1], scope));
      given[i] = &bounds[i];
    }
  }
  return GetSlice(context_, object, given[0], given[1], given[2]);
}

Result ExpressionEvaluator::EvalCall(const Expr& expr, Scope* scope) {
  SHOAL_ASSIGN_OR_RETURN(const Value callee, Eval(*expr.args[0], scope));
  if (!callee.is(Kind::kFunction)) {
    return absl::InvalidArgumentError(callee.is_undefined()
                                          ? callee.WhyUndefined()
                                          : absl::StrCat(callee.TypeName(), " cannot be called"));
  }
  SHOAL_ASSIGN_OR_RETURN(const std::vector<Value> positional, EvalAll(expr, 1, scope));
  std::vector<NamedValue> named;
  for (const auto& [name, arg] : expr.named) {
    SHOAL_ASSIGN_OR_RETURN(const Value value, Eval(*arg, scope));
    named.emplace_back(name, value);
  }
  const Function& function = callee.AsFunction();
  const Arguments args{positional, named};
  return function.native != nullptr ? CallNative(*function.native, context_, function.self, args)
                                    : CallMacro(function, args);
}

Result ExpressionEvaluator::CallMacro(const Function& function, const Arguments& args) {
  const Stmt& macro = *function.macro;
  if (args.positional.size() > macro.params.size()) {
    return absl::InvalidArgumentError(absl::StrCat("macro '", macro.name, "' takes at most ",
                                                   macro.params.size(), " arguments, not ",
                                                   args.positional.size()));
  }
  Scope* scope = context_.NewScope(function.scope);
  size_t num_named = 0;
  for (size_t i = 0; i < macro.params.size(); ++i) {
    const Param& param = macro.params[i];
    const Value* named = args.Get(absl::string_view(param.name));
    if (named != nullptr && i < args.positional.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("macro '", macro.name, "' got two values for '", param.name, "'"));
    }
    Value value;
    if (named != nullptr) {
      value = *named;
      ++num_named;
    } else if (i < args.positional.size()) {
      value = args.positional[i];
    } else if (param.fallback != nullptr) {
      SHOAL_ASSIGN_OR_RETURN(value, Eval(*param.fallback, scope));
    } else {
      value = context_.NewUndefined(absl::StrCat("parameter '", param.name, "' was not provided"));
    }
    scope->Set(param.name, value);
  }
  if (num_named < args.named.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("macro '", macro.name, "' got an argument that it has no parameter for"));
  }
  return macros_.RunMacro(macro, scope);
}

Result ExpressionEvaluator::EvalNative(const Expr& expr, Scope* scope) {
  SHOAL_ASSIGN_OR_RETURN(const Value input, Eval(*expr.args[0], scope));
  SHOAL_ASSIGN_OR_RETURN(const std::vector<Value> positional, EvalAll(expr, 1, scope));
  std::vector<NamedValue> named;
  for (const auto& [name, arg] : expr.named) {
    SHOAL_ASSIGN_OR_RETURN(const Value value, Eval(*arg, scope));
    named.emplace_back(name, value);
  }
  return CallNative(*expr.native, context_, input, {positional, named});
}

Result ExpressionEvaluator::EvalUnary(const Expr& expr, Scope* scope) {
  SHOAL_ASSIGN_OR_RETURN(const Value operand, Eval(*expr.args[0], scope));
  return expr.op == "not" ? Value::Bool(!operand.IsTrue()) : Sign(expr.op, operand);
}

Result ExpressionEvaluator::EvalBinary(const Expr& expr, Scope* scope) {
  SHOAL_ASSIGN_OR_RETURN(const Value left, Eval(*expr.args[0], scope));
  if (expr.op == "and" || expr.op == "or") {
    return left.IsTrue() == (expr.op == "or") ? left : Eval(*expr.args[1], scope);
  }
  SHOAL_ASSIGN_OR_RETURN(const Value right, Eval(*expr.args[1], scope));
  return Arithmetic(context_, expr.op, left, right);
}

Result ExpressionEvaluator::EvalConcat(const Expr& expr, Scope* scope) {
  static const MarkedString no_separator;
  SHOAL_ASSIGN_OR_RETURN(const std::vector<Value> operands, EvalAll(expr, 0, scope));
  return JoinText(context_, Value::String(&no_separator), operands);
}

Result ExpressionEvaluator::EvalCompare(const Expr& expr, Scope* scope) {
  SHOAL_ASSIGN_OR_RETURN(Value left, Eval(*expr.args[0], scope));
  for (size_t i = 0; i < expr.ops.size(); ++i) {
    SHOAL_ASSIGN_OR_RETURN(const Value right, Eval(*expr.args[i + 1], scope));
    SHOAL_ASSIGN_OR_RETURN(const bool holds, Compare(context_, expr.ops[i], left, right));
    if (!holds) {
      return Value::Bool(false);
    }
    left = right;
  }
  return Value::Bool(true);
}

Result ExpressionEvaluator::EvalIfElse(const Expr& expr, Scope* scope) {
  SHOAL_ASSIGN_OR_RETURN(const Value condition, Eval(*expr.args[0], scope));
  if (condition.IsTrue()) {
    return Eval(*expr.args[1], scope);
  }
  return expr.args[2] != nullptr ? Eval(*expr.args[2], scope)
                                 : context_.NewUndefined("an inline if was false and has no else");
}

}  // namespace shoal::text::jinja
