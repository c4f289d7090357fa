// What may follow a primary expression: attributes, subscripts, calls, filters and tests.

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "model/text/jinja_expression_parser.h"

namespace shoal::text::jinja {

absl::StatusOr<ExprPtr> ExpressionParser::ParsePostfix(ExprPtr expr) {
  while (true) {
    if (tokens_.TakeOperator(".")) {
      if (tokens_.Is(TokenKind::kInteger)) {
        SHOAL_ASSIGN_OR_RETURN(ExprPtr index, ParseNumber());
        expr = NewExpr(ExprKind::kItem, std::move(expr), std::move(index));
      } else if (tokens_.Is(TokenKind::kName)) {
        expr = NewExpr(ExprKind::kAttr, std::move(expr));
        expr->name = tokens_.Take().text;
      } else {
        return tokens_.Unexpected("a name or number after '.'");
      }
    } else if (tokens_.TakeOperator("[")) {
      SHOAL_ASSIGN_OR_RETURN(expr, ParseSubscript(std::move(expr)));
    } else if (tokens_.IsOperator("(")) {
      expr = NewExpr(ExprKind::kCall, std::move(expr));
      SHOAL_RETURN_IF_ERROR(ParseArguments(expr.get()));
    } else {
      return expr;
    }
    SHOAL_ASSIGN_OR_RETURN(expr, Finish(std::move(expr)));
  }
}

absl::StatusOr<ExprPtr> ExpressionParser::ParseSubscript(ExprPtr object) {
  ExprPtr bounds[3];
  bool is_slice = false;
  for (int i = 0; i < 3; ++i) {
    if (!tokens_.IsOperator(":") && !tokens_.IsOperator("]")) {
      SHOAL_ASSIGN_OR_RETURN(bounds[i], ParseExpression());
    }
    if (!tokens_.IsOperator(":") || i == 2) {
      break;
    }
    tokens_.Take();
    is_slice = true;
  }
  if (!is_slice && bounds[0] == nullptr) {
    return tokens_.Unexpected("an expression");
  }
  if (!is_slice && tokens_.IsOperator(",")) {
    ExprPtr tuple = NewExpr(ExprKind::kTuple, std::move(bounds[0]));
    while (tokens_.TakeOperator(",") && !AtTupleEnd()) {
      SHOAL_ASSIGN_OR_RETURN(ExprPtr item, ParseExpression());
      tuple->args.push_back(std::move(item));
    }
    SHOAL_ASSIGN_OR_RETURN(bounds[0], Finish(std::move(tuple)));
  }
  SHOAL_RETURN_IF_ERROR(tokens_.ExpectOperator("]"));
  return is_slice ? NewExpr(ExprKind::kSlice, std::move(object), std::move(bounds[0]),
                            std::move(bounds[1]), std::move(bounds[2]))
                  : NewExpr(ExprKind::kItem, std::move(object), std::move(bounds[0]));
}

absl::Status ExpressionParser::ParseArguments(Expr* call) {
  SHOAL_RETURN_IF_ERROR(tokens_.ExpectOperator("("));
  for (bool first = true; !tokens_.TakeOperator(")"); first = false) {
    if (!first) {
      SHOAL_RETURN_IF_ERROR(tokens_.ExpectOperator(","));
      if (tokens_.TakeOperator(")")) {
        break;
      }
    }
    if (tokens_.IsOperator("*") || tokens_.IsOperator("**")) {
      return tokens_.Fail("argument lists with * and ** are not supported");
    }
    if (tokens_.Is(TokenKind::kName) && tokens_.IsOperator("=", 1)) {
      std::string name = tokens_.Take().text;
      tokens_.Take();
      SHOAL_ASSIGN_OR_RETURN(ExprPtr value, ParseExpression());
      call->named.emplace_back(std::move(name), std::move(value));
    } else if (!call->named.empty()) {
      return tokens_.Fail("a positional argument follows a named one");
    } else {
      SHOAL_ASSIGN_OR_RETURN(ExprPtr value, ParseExpression());
      call->args.push_back(std::move(value));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<ExprPtr> ExpressionParser::ParseFilter(ExprPtr input) {
  if (!tokens_.Is(TokenKind::kName)) {
    return tokens_.Unexpected("the name of a filter");
  }
  ExprPtr filter = NewExpr(ExprKind::kFilter, std::move(input));
  filter->name = tokens_.Peek().text;
  filter->native = FindFilter(filter->name);
  if (filter->native == nullptr) {
    return tokens_.Fail(absl::StrCat("there is no filter '", filter->name, "'"));
  }
  tokens_.Take();
  if (tokens_.IsOperator("(")) {
    SHOAL_RETURN_IF_ERROR(ParseArguments(filter.get()));
  }
  return Finish(std::move(filter));
}

absl::StatusOr<ExprPtr> ExpressionParser::ParseFilters(ExprPtr input) {
  do {
    SHOAL_ASSIGN_OR_RETURN(input, ParseFilter(std::move(input)));
  } while (tokens_.TakeOperator("|"));
  return input;
}

absl::StatusOr<ExprPtr> ExpressionParser::ParseTest(ExprPtr input) {
  const bool negated = tokens_.TakeName("not");
  if (!tokens_.Is(TokenKind::kName)) {
    return tokens_.Unexpected("the name of a test");
  }
  ExprPtr test = NewExpr(ExprKind::kTest, std::move(input));
  test->name = tokens_.Peek().text;
  test->native = FindTest(test->name);
  if (test->native == nullptr) {
    return tokens_.Fail(absl::StrCat("there is no test '", test->name, "'"));
  }
  tokens_.Take();
  if (tokens_.IsName("is")) {
    return tokens_.Fail("tests cannot be chained with 'is'");
  }
  const bool has_operand = tokens_.Is(TokenKind::kString) || tokens_.Is(TokenKind::kInteger) ||
                           tokens_.Is(TokenKind::kFloat) || tokens_.IsOperator("[") ||
                           tokens_.IsOperator("{") ||
                           (tokens_.Is(TokenKind::kName) && !tokens_.IsName("else") &&
                            !tokens_.IsName("or") && !tokens_.IsName("and"));
  if (tokens_.IsOperator("(")) {
    SHOAL_RETURN_IF_ERROR(ParseArguments(test.get()));
  } else if (has_operand && test->native->num_required > 0) {  // x is divisibleby 3
    SHOAL_ASSIGN_OR_RETURN(ExprPtr operand, ParsePrimary());
    SHOAL_ASSIGN_OR_RETURN(operand, ParsePostfix(std::move(operand)));
    test->args.push_back(std::move(operand));
  }
  SHOAL_ASSIGN_OR_RETURN(test, Finish(std::move(test)));
  if (!negated) {
    return test;
  }
  ExprPtr negation = NewExpr(ExprKind::kUnary, std::move(test));
  negation->op = "not";
  return Finish(std::move(negation));
}

}  // namespace shoal::text::jinja
