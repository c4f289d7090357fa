#include "model/text/jinja_parser.h"

#include <algorithm>
#include <initializer_list>
#include <string>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "model/text/jinja_expression_parser.h"
#include "model/text/jinja_lexer.h"
#include "model/text/jinja_token_stream.h"

namespace shoal::text::jinja {
namespace {

using StmtPtr = std::unique_ptr<Stmt>;

class Parser {
 public:
  explicit Parser(std::vector<Token> tokens) : tokens_(std::move(tokens)), expressions_(&tokens_) {}

  absl::StatusOr<Body> ParseTemplate() { return ParseBody({}); }

 private:
  StmtPtr NewStmt(StmtKind kind) const;
  // Up to one of the tags `ends`, whose name is taken; up to the end if there are none.
  absl::StatusOr<Body> ParseBody(std::initializer_list<absl::string_view> ends);
  absl::StatusOr<StmtPtr> ParsePrint();
  absl::StatusOr<StmtPtr> ParseTag();
  absl::StatusOr<StmtPtr> ParseIf();
  absl::StatusOr<StmtPtr> ParseFor();
  absl::StatusOr<StmtPtr> ParseSet();
  absl::StatusOr<StmtPtr> ParseMacro();
  absl::StatusOr<StmtPtr> ParseFilterBlock();
  absl::StatusOr<StmtPtr> ParseGeneration();
  absl::Status ParseParams(Stmt* macro);
  absl::Status EndTag() { return tokens_.Expect(TokenKind::kBlockEnd, "'%}'"); }

  TokenStream tokens_;
  ExpressionParser expressions_;
  int depth_ = 0;         // of blocks
  int loop_depth_ = 0;    // of loops that break and continue can mean
  std::string last_end_;  // the tag that ended the last body
};

StmtPtr Parser::NewStmt(StmtKind kind) const {
  auto stmt = std::make_unique<Stmt>();
  stmt->kind = kind;
  stmt->line = tokens_.Peek().line;
  return stmt;
}

ExprPtr CapturedText() {
  auto expr = std::make_unique<Expr>();
  expr->kind = ExprKind::kName;
  expr->name = kCaptured;
  return expr;
}

absl::StatusOr<Body> Parser::ParseBody(std::initializer_list<absl::string_view> ends) {
  ++depth_;
  const absl::Cleanup leave = [this] { --depth_; };
  if (depth_ > kMaxNesting) {
    return tokens_.Fail(absl::StrCat("blocks nest too deeply (limit ", kMaxNesting, ")"));
  }
  Body body;
  while (!tokens_.Is(TokenKind::kEnd)) {
    if (tokens_.Is(TokenKind::kText)) {
      body.push_back(NewStmt(StmtKind::kText));
      body.back()->text.Append(tokens_.Take().text, Origin::kTemplate);
      continue;
    }
    if (tokens_.Is(TokenKind::kVariableBegin)) {
      SHOAL_ASSIGN_OR_RETURN(StmtPtr print, ParsePrint());
      body.push_back(std::move(print));
      continue;
    }
    tokens_.Take();  // the beginning of a tag
    if (std::any_of(ends.begin(), ends.end(),
                    [&](absl::string_view end) { return tokens_.IsName(end); })) {
      last_end_ = tokens_.Take().text;
      return body;
    }
    SHOAL_ASSIGN_OR_RETURN(StmtPtr tag, ParseTag());
    body.push_back(std::move(tag));
  }
  if (ends.size() > 0) {
    return tokens_.Fail(absl::StrCat("the template ends before ", absl::StrJoin(ends, " or ")));
  }
  return body;
}

absl::StatusOr<StmtPtr> Parser::ParsePrint() {
  StmtPtr print = NewStmt(StmtKind::kPrint);
  tokens_.Take();
  SHOAL_ASSIGN_OR_RETURN(print->expr, expressions_.ParseTuple(true));
  SHOAL_RETURN_IF_ERROR(tokens_.Expect(TokenKind::kVariableEnd, "'}}'"));
  return print;
}

absl::StatusOr<StmtPtr> Parser::ParseTag() {
  if (tokens_.IsName("if")) return ParseIf();
  if (tokens_.IsName("for")) return ParseFor();
  if (tokens_.IsName("set")) return ParseSet();
  if (tokens_.IsName("macro")) return ParseMacro();
  if (tokens_.IsName("filter")) return ParseFilterBlock();
  if (tokens_.IsName("generation")) return ParseGeneration();
  if (tokens_.IsName("break") || tokens_.IsName("continue")) {
    if (loop_depth_ == 0) {
      return tokens_.Fail(absl::StrCat("'", tokens_.Peek().text, "' is outside of a loop"));
    }
    StmtPtr jump = NewStmt(tokens_.IsName("break") ? StmtKind::kBreak : StmtKind::kContinue);
    tokens_.Take();
    SHOAL_RETURN_IF_ERROR(EndTag());
    return jump;
  }
  if (tokens_.Is(TokenKind::kName)) {
    return tokens_.Fail(absl::StrCat("unexpected tag '", tokens_.Peek().text, "'"));
  }
  return tokens_.Unexpected("the name of a tag");
}

absl::StatusOr<StmtPtr> Parser::ParseIf() {
  StmtPtr stmt = NewStmt(StmtKind::kIf);
  tokens_.Take();
  for (bool is_else = false;;) {
    Branch& branch = stmt->branches.emplace_back();
    if (!is_else) {
      SHOAL_ASSIGN_OR_RETURN(branch.condition, expressions_.ParseTuple(false));
    }
    SHOAL_RETURN_IF_ERROR(EndTag());
    if (is_else) {
      SHOAL_ASSIGN_OR_RETURN(branch.body, ParseBody({"endif"}));
    } else {
      SHOAL_ASSIGN_OR_RETURN(branch.body, ParseBody({"elif", "else", "endif"}));
    }
    if (last_end_ == "endif") {
      SHOAL_RETURN_IF_ERROR(EndTag());
      return stmt;
    }
    is_else = last_end_ == "else";
  }
}

absl::StatusOr<StmtPtr> Parser::ParseFor() {
  StmtPtr stmt = NewStmt(StmtKind::kFor);
  tokens_.Take();
  SHOAL_ASSIGN_OR_RETURN(stmt->target, expressions_.ParseTarget(false));
  if (!tokens_.TakeName("in")) {
    return tokens_.Unexpected("'in'");
  }
  SHOAL_ASSIGN_OR_RETURN(stmt->expr, expressions_.ParseTuple(false));
  if (tokens_.TakeName("if")) {
    SHOAL_ASSIGN_OR_RETURN(stmt->condition, expressions_.ParseExpression());
  }
  if (tokens_.IsName("recursive")) {
    return tokens_.Fail("recursive loops are not supported; use a macro");
  }
  SHOAL_RETURN_IF_ERROR(EndTag());
  ++loop_depth_;
  absl::StatusOr<Body> body = ParseBody({"endfor", "else"});
  --loop_depth_;
  SHOAL_ASSIGN_OR_RETURN(stmt->body, std::move(body));
  if (last_end_ == "else") {
    SHOAL_RETURN_IF_ERROR(EndTag());
    SHOAL_ASSIGN_OR_RETURN(stmt->else_body, ParseBody({"endfor"}));
  }
  SHOAL_RETURN_IF_ERROR(EndTag());
  return stmt;
}

absl::StatusOr<StmtPtr> Parser::ParseSet() {
  StmtPtr stmt = NewStmt(StmtKind::kSet);
  tokens_.Take();
  SHOAL_ASSIGN_OR_RETURN(stmt->target, expressions_.ParseTarget(true));
  if (tokens_.TakeOperator("=")) {
    SHOAL_ASSIGN_OR_RETURN(stmt->expr, expressions_.ParseTuple(true));
    SHOAL_RETURN_IF_ERROR(EndTag());
    return stmt;
  }
  stmt->kind = StmtKind::kCapture;
  if (tokens_.TakeOperator("|")) {
    SHOAL_ASSIGN_OR_RETURN(stmt->expr, expressions_.ParseFilters(CapturedText()));
  }
  SHOAL_RETURN_IF_ERROR(EndTag());
  SHOAL_ASSIGN_OR_RETURN(stmt->body, ParseBody({"endset"}));
  SHOAL_RETURN_IF_ERROR(EndTag());
  return stmt;
}

absl::Status Parser::ParseParams(Stmt* macro) {
  SHOAL_RETURN_IF_ERROR(tokens_.ExpectOperator("("));
  while (!tokens_.TakeOperator(")")) {
    if (!macro->params.empty()) {
      SHOAL_RETURN_IF_ERROR(tokens_.ExpectOperator(","));
      if (tokens_.TakeOperator(")")) {
        break;
      }
    }
    if (!tokens_.Is(TokenKind::kName)) {
      return tokens_.Unexpected("the name of a parameter");
    }
    Param& param = macro->params.emplace_back();
    param.name = tokens_.Take().text;
    if (tokens_.TakeOperator("=")) {
      SHOAL_ASSIGN_OR_RETURN(param.fallback, expressions_.ParseExpression());
    } else if (macro->params.size() > 1 && macro->params.end()[-2].fallback != nullptr) {
      return tokens_.Fail(
          absl::StrCat("parameter '", param.name, "' without a default follows one with"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<StmtPtr> Parser::ParseMacro() {
  StmtPtr stmt = NewStmt(StmtKind::kMacro);
  tokens_.Take();
  if (!tokens_.Is(TokenKind::kName)) {
    return tokens_.Unexpected("the name of a macro");
  }
  stmt->name = tokens_.Take().text;
  SHOAL_RETURN_IF_ERROR(ParseParams(stmt.get()));
  SHOAL_RETURN_IF_ERROR(EndTag());
  const int outer_loops = std::exchange(loop_depth_, 0);
  SHOAL_ASSIGN_OR_RETURN(stmt->body, ParseBody({"endmacro"}));
  loop_depth_ = outer_loops;
  SHOAL_RETURN_IF_ERROR(EndTag());
  return stmt;
}

absl::StatusOr<StmtPtr> Parser::ParseFilterBlock() {
  StmtPtr stmt = NewStmt(StmtKind::kFilterBlock);
  tokens_.Take();
  SHOAL_ASSIGN_OR_RETURN(stmt->expr, expressions_.ParseFilters(CapturedText()));
  SHOAL_RETURN_IF_ERROR(EndTag());
  SHOAL_ASSIGN_OR_RETURN(stmt->body, ParseBody({"endfilter"}));
  SHOAL_RETURN_IF_ERROR(EndTag());
  return stmt;
}

absl::StatusOr<StmtPtr> Parser::ParseGeneration() {
  StmtPtr stmt = NewStmt(StmtKind::kScope);
  tokens_.Take();
  SHOAL_RETURN_IF_ERROR(EndTag());
  SHOAL_ASSIGN_OR_RETURN(stmt->body, ParseBody({"endgeneration"}));
  SHOAL_RETURN_IF_ERROR(EndTag());
  return stmt;
}

std::string Describe(const Token& token) {
  switch (token.kind) {
    case TokenKind::kEnd:
      return "the end of the template";
    case TokenKind::kText:
      return "text";
    case TokenKind::kVariableBegin:
      return "'{{'";
    case TokenKind::kVariableEnd:
      return "'}}'";
    case TokenKind::kBlockBegin:
      return "'{%'";
    case TokenKind::kBlockEnd:
      return "'%}'";
    default:
      return absl::StrCat("'", token.text.substr(0, 40), "'");
  }
}

}  // namespace

absl::Status TokenStream::Unexpected(absl::string_view expected) const {
  return Fail(absl::StrCat("expected ", expected, ", not ", Describe(Peek())));
}

absl::StatusOr<Body> Parse(absl::string_view source) {
  SHOAL_ASSIGN_OR_RETURN(std::vector<Token> tokens, Tokenize(source));
  return Parser(std::move(tokens)).ParseTemplate();
}

}  // namespace shoal::text::jinja
