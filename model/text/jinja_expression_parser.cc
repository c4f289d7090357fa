#include "model/text/jinja_expression_parser.h"

#include <algorithm>
#include <charconv>
#include <string>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "model/text/jinja_parser.h"

namespace shoal::text::jinja {
namespace {

ExprPtr NewConst(Value value) {
  ExprPtr expr = NewExpr(ExprKind::kConst);
  expr->constant = value;
  return expr;
}

ExprPtr NewOp(ExprKind kind, std::string op, ExprPtr a, ExprPtr b = nullptr) {
  ExprPtr expr = NewExpr(kind, std::move(a));
  if (b != nullptr) {
    expr->args.push_back(std::move(b));
  }
  expr->op = std::move(op);
  return expr;
}

}  // namespace

absl::StatusOr<ExprPtr> ExpressionParser::Finish(ExprPtr expr) const {
  for (const ExprPtr& arg : expr->args) {
    expr->depth = std::max(expr->depth, arg == nullptr ? 1 : arg->depth + 1);
  }
  for (const auto& [name, arg] : expr->named) {
    expr->depth = std::max(expr->depth, arg->depth + 1);
  }
  if (expr->depth > kMaxNesting) {
    return tokens_.Fail(absl::StrCat("expression nests too deeply (limit ", kMaxNesting, ")"));
  }
  return expr;
}

absl::StatusOr<ExprPtr> ExpressionParser::ParseExpression(bool with_if_else) {
  ++depth_;
  const absl::Cleanup leave = [this] { --depth_; };
  if (depth_ > kMaxNesting) {
    return tokens_.Fail(absl::StrCat("expression nests too deeply (limit ", kMaxNesting, ")"));
  }
  return with_if_else ? ParseIfElse() : ParseBinary(Level::kOr);
}

absl::StatusOr<ExprPtr> ExpressionParser::ParseIfElse() {
  SHOAL_ASSIGN_OR_RETURN(ExprPtr expr, ParseBinary(Level::kOr));
  while (tokens_.TakeName("if")) {
    SHOAL_ASSIGN_OR_RETURN(ExprPtr condition, ParseBinary(Level::kOr));
    ExprPtr otherwise;
    if (tokens_.TakeName("else")) {
      SHOAL_ASSIGN_OR_RETURN(otherwise, ParseExpression());
    }
    expr = NewExpr(ExprKind::kIfElse, std::move(condition), std::move(expr), std::move(otherwise));
    SHOAL_ASSIGN_OR_RETURN(expr, Finish(std::move(expr)));
  }
  return expr;
}

absl::StatusOr<ExprPtr> ExpressionParser::ParseOperand(Level level) {
  switch (level) {
    case Level::kOr:
      return ParseBinary(Level::kAnd);
    case Level::kAnd:
      return ParseNot();
    case Level::kSum:
      return ParseConcat();
    case Level::kProduct:
      return ParseBinary(Level::kPower);
    case Level::kPower:
      break;
  }
  return ParseUnary(true);
}

bool ExpressionParser::AtOperator(Level level) const {
  switch (level) {
    case Level::kOr:
      return tokens_.IsName("or");
    case Level::kAnd:
      return tokens_.IsName("and");
    case Level::kSum:
      return tokens_.IsOperator("+") || tokens_.IsOperator("-");
    case Level::kProduct:
      return tokens_.IsOperator("*") || tokens_.IsOperator("/") || tokens_.IsOperator("//") ||
             tokens_.IsOperator("%");
    case Level::kPower:
      break;
  }
  return tokens_.IsOperator("**");
}

absl::StatusOr<ExprPtr> ExpressionParser::ParseBinary(Level level) {
  SHOAL_ASSIGN_OR_RETURN(ExprPtr left, ParseOperand(level));
  while (AtOperator(level)) {
    std::string op = tokens_.Take().text;
    SHOAL_ASSIGN_OR_RETURN(ExprPtr right, ParseOperand(level));
    SHOAL_ASSIGN_OR_RETURN(
        left, Finish(NewOp(ExprKind::kBinary, std::move(op), std::move(left), std::move(right))));
  }
  return left;
}

absl::StatusOr<ExprPtr> ExpressionParser::ParseNot() {
  int count = 0;
  while (tokens_.TakeName("not")) {
    ++count;
  }
  SHOAL_ASSIGN_OR_RETURN(ExprPtr expr, ParseCompare());
  for (; count > 0; --count) {
    SHOAL_ASSIGN_OR_RETURN(expr, Finish(NewOp(ExprKind::kUnary, "not", std::move(expr))));
  }
  return expr;
}

absl::StatusOr<ExprPtr> ExpressionParser::ParseCompare() {
  constexpr absl::string_view kOps[] = {"==", "!=", "<", "<=", ">", ">="};
  SHOAL_ASSIGN_OR_RETURN(ExprPtr first, ParseBinary(Level::kSum));
  ExprPtr compare = NewExpr(ExprKind::kCompare, std::move(first));
  while (true) {
    const Token& token = tokens_.Peek();
    const Token& next = tokens_.Peek(1);
    if (token.kind == TokenKind::kOperator &&
        std::find(std::begin(kOps), std::end(kOps), token.text) != std::end(kOps)) {
      compare->ops.push_back(tokens_.Take().text);
    } else if (tokens_.TakeName("in")) {
      compare->ops.push_back("in");
    } else if (tokens_.IsName("not") && next.kind == TokenKind::kName && next.text == "in") {
      tokens_.Take();
      tokens_.Take();
      compare->ops.push_back("not in");
    } else {
      break;
    }
    SHOAL_ASSIGN_OR_RETURN(ExprPtr operand, ParseBinary(Level::kSum));
    compare->args.push_back(std::move(operand));
  }
  return compare->ops.empty() ? std::move(compare->args[0]) : Finish(std::move(compare));
}

absl::StatusOr<ExprPtr> ExpressionParser::ParseConcat() {
  SHOAL_ASSIGN_OR_RETURN(ExprPtr first, ParseBinary(Level::kProduct));
  if (!tokens_.IsOperator("~")) {
    return first;
  }
  ExprPtr concat = NewExpr(ExprKind::kConcat, std::move(first));
  while (tokens_.TakeOperator("~")) {
    SHOAL_ASSIGN_OR_RETURN(ExprPtr operand, ParseBinary(Level::kProduct));
    concat->args.push_back(std::move(operand));
  }
  return Finish(std::move(concat));
}

absl::StatusOr<ExprPtr> ExpressionParser::ParseUnary(bool with_filters) {
  ExprPtr expr;
  if (tokens_.IsOperator("-") || tokens_.IsOperator("+")) {
    ++depth_;
    const absl::Cleanup leave = [this] { --depth_; };
    if (depth_ > kMaxNesting) {
      return tokens_.Fail(absl::StrCat("expression nests too deeply (limit ", kMaxNesting, ")"));
    }
    std::string op = tokens_.Take().text;
    SHOAL_ASSIGN_OR_RETURN(ExprPtr operand, ParseUnary(false));
    SHOAL_ASSIGN_OR_RETURN(expr,
                           Finish(NewOp(ExprKind::kUnary, std::move(op), std::move(operand))));
  } else {
    SHOAL_ASSIGN_OR_RETURN(expr, ParsePrimary());
  }
  SHOAL_ASSIGN_OR_RETURN(expr, ParsePostfix(std::move(expr)));
  while (with_filters) {
    if (tokens_.IsOperator("|")) {
      tokens_.Take();
      SHOAL_ASSIGN_OR_RETURN(expr, ParseFilter(std::move(expr)));
    } else if (tokens_.TakeName("is")) {
      SHOAL_ASSIGN_OR_RETURN(expr, ParseTest(std::move(expr)));
    } else if (tokens_.IsOperator("(")) {
      SHOAL_ASSIGN_OR_RETURN(expr, ParsePostfix(std::move(expr)));
    } else {
      break;
    }
  }
  return expr;
}

absl::StatusOr<ExprPtr> ExpressionParser::ParsePrimary() {
  switch (tokens_.Peek().kind) {
    case TokenKind::kName:
      return ParseName();
    case TokenKind::kInteger:
    case TokenKind::kFloat:
      return ParseNumber();
    case TokenKind::kString: {
      ExprPtr expr = NewExpr(ExprKind::kString);
      while (tokens_.Is(TokenKind::kString)) {  // adjacent literals are one
        expr->text.Append(tokens_.Take().text, Origin::kTemplate);
      }
      return expr;
    }
    default:
      break;
  }
  if (tokens_.TakeOperator("(")) {
    SHOAL_ASSIGN_OR_RETURN(ExprPtr expr, ParseTuple(true, true));
    SHOAL_RETURN_IF_ERROR(tokens_.ExpectOperator(")"));
    return expr;
  }
  if (tokens_.TakeOperator("[")) {
    return ParseList();
  }
  if (tokens_.TakeOperator("{")) {
    return ParseDict();
  }
  return tokens_.Unexpected("an expression");
}

absl::StatusOr<ExprPtr> ExpressionParser::ParseName() {
  const std::string& name = tokens_.Take().text;
  if (name == "true" || name == "True" || name == "false" || name == "False") {
    return NewConst(Value::Bool(name == "true" || name == "True"));
  }
  if (name == "none" || name == "None") {
    return NewConst(Value::None());
  }
  ExprPtr expr = NewExpr(ExprKind::kName);
  expr->name = name;
  return expr;
}

absl::StatusOr<ExprPtr> ExpressionParser::ParseNumber() {
  const bool is_float = tokens_.Is(TokenKind::kFloat);
  const std::string text = absl::AsciiStrToLower(tokens_.Peek().text);
  int64_t integer = 0;
  double number = 0;
  bool ok;
  if (is_float) {
    ok = absl::SimpleAtod(text, &number);
  } else {
    const bool prefixed = text.size() > 2 && absl::ascii_isalpha(text[1]);
    const int base = !prefixed ? 10 : text[1] == 'x' ? 16 : text[1] == 'o' ? 8 : 2;
    const char* end = text.data() + text.size();
    const auto parsed = std::from_chars(text.data() + (prefixed ? 2 : 0), end, integer, base);
    ok = parsed.ec == std::errc() && parsed.ptr == end;
  }
  if (!ok) {
    return tokens_.Fail(absl::StrCat("'", text, "' is no number of 64 bits"));
  }
  tokens_.Take();
  return NewConst(is_float ? Value::Float(number) : Value::Int(integer));
}

absl::StatusOr<ExprPtr> ExpressionParser::ParseList() {
  ExprPtr list = NewExpr(ExprKind::kList);
  while (!tokens_.TakeOperator("]")) {
    if (!list->args.empty()) {
      SHOAL_RETURN_IF_ERROR(tokens_.ExpectOperator(","));
      if (tokens_.TakeOperator("]")) {
        break;
      }
    }
    SHOAL_ASSIGN_OR_RETURN(ExprPtr item, ParseExpression());
    list->args.push_back(std::move(item));
  }
  return Finish(std::move(list));
}

absl::StatusOr<ExprPtr> ExpressionParser::ParseDict() {
  ExprPtr dict = NewExpr(ExprKind::kDict);
  while (!tokens_.TakeOperator("}")) {
    if (!dict->args.empty()) {
      SHOAL_RETURN_IF_ERROR(tokens_.ExpectOperator(","));
      if (tokens_.TakeOperator("}")) {
        break;
      }
    }
    SHOAL_ASSIGN_OR_RETURN(ExprPtr key, ParseExpression());
    SHOAL_RETURN_IF_ERROR(tokens_.ExpectOperator(":"));
    SHOAL_ASSIGN_OR_RETURN(ExprPtr value, ParseExpression());
    dict->args.push_back(std::move(key));
    dict->args.push_back(std::move(value));
  }
  return Finish(std::move(dict));
}

bool ExpressionParser::AtTupleEnd() const {
  return tokens_.Is(TokenKind::kVariableEnd) || tokens_.Is(TokenKind::kBlockEnd) ||
         tokens_.Is(TokenKind::kEnd) || tokens_.IsOperator(")") || tokens_.IsOperator("]");
}

absl::StatusOr<ExprPtr> ExpressionParser::ParseTuple(bool with_if_else, bool allow_empty) {
  if (allow_empty && AtTupleEnd()) {
    return NewExpr(ExprKind::kTuple);
  }
  SHOAL_ASSIGN_OR_RETURN(ExprPtr first, ParseExpression(with_if_else));
  if (!tokens_.IsOperator(",")) {
    return first;
  }
  ExprPtr tuple = NewExpr(ExprKind::kTuple, std::move(first));
  while (tokens_.TakeOperator(",") && !AtTupleEnd()) {
    SHOAL_ASSIGN_OR_RETURN(ExprPtr item, ParseExpression(with_if_else));
    tuple->args.push_back(std::move(item));
  }
  return Finish(std::move(tuple));
}

absl::StatusOr<Target> ExpressionParser::ParseTarget(bool allow_attribute) {
  Target tuple;
  bool is_tuple = false;
  while (true) {
    Target target;
    if (tokens_.TakeOperator("(")) {
      if (++depth_ > kMaxNesting) {
        return tokens_.Fail(absl::StrCat("target nests too deeply (limit ", kMaxNesting, ")"));
      }
      SHOAL_ASSIGN_OR_RETURN(target, ParseTarget(allow_attribute));
      --depth_;
      SHOAL_RETURN_IF_ERROR(tokens_.ExpectOperator(")"));
    } else if (tokens_.Is(TokenKind::kName) && !tokens_.IsName("in")) {
      target.name = tokens_.Take().text;
      if (allow_attribute && tokens_.TakeOperator(".")) {
        if (!tokens_.Is(TokenKind::kName)) {
          return tokens_.Unexpected("the name of an attribute");
        }
        target.attribute = tokens_.Take().text;
      }
    } else {
      return tokens_.Unexpected("the name of a variable");
    }
    tuple.parts.push_back(std::move(target));
    if (!tokens_.TakeOperator(",")) {
      break;
    }
    is_tuple = true;
    if (tokens_.IsName("in") || tokens_.IsOperator("=") || tokens_.IsOperator(")")) {
      break;
    }
  }
  return is_tuple ? std::move(tuple) : std::move(tuple.parts[0]);
}

}  // namespace shoal::text::jinja
