#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "model/text/jinja_native.h"
#include "model/text/jinja_string.h"
#include "model/text/jinja_value.h"

namespace shoal::text::jinja {

struct Expr;
struct Stmt;
using ExprPtr = std::unique_ptr<Expr>;
using Body = std::vector<std::unique_ptr<Stmt>>;

// What `args` and the other fields of an Expr hold, by kind; "?" may be null.
enum class ExprKind {
  kConst,    // constant
  kString,   // text: template bytes
  kName,     // name
  kList,     // args: items
  kTuple,    // args: items
  kDict,     // args: key, value, key, value ...
  kAttr,     // args: object; name
  kItem,     // args: object, key
  kSlice,    // args: object, start?, stop?, step?
  kCall,     // args: callee, positional ...; named
  kFilter,   // args: input, positional ...; named; native
  kTest,     // args: input, positional ...; named; native
  kUnary,    // args: operand; op: + - or "not"
  kBinary,   // args: left, right; op: + - * / // % ** and or
  kConcat,   // args: the operands of ~
  kCompare,  // args: first, second ...; ops: one fewer; a < b < c
  kIfElse,   // args: condition, then, else?
};

struct Expr {
  ExprKind kind;
  int depth = 1;  // of the tree below; the parser keeps it bounded, so recursion over it is safe
  Value constant;
  MarkedString text;
  std::string name;
  std::string op;
  std::vector<std::string> ops;
  const Native* native = nullptr;  // in a static table
  std::vector<ExprPtr> args;
  std::vector<std::pair<std::string, ExprPtr>> named;
};

template <typename... Args>
ExprPtr NewExpr(ExprKind kind, Args... args) {
  auto expr = std::make_unique<Expr>();
  expr->kind = kind;
  (expr->args.push_back(std::move(args)), ...);
  return expr;
}

// Where `set` and `for` put values: a name, an attribute of a namespace, or several of these.
struct Target {
  std::string name;
  std::string attribute;      // of the namespace `name`, if not empty
  std::vector<Target> parts;  // of a tuple, if not empty
};

enum class StmtKind {
  kText,         // text
  kPrint,        // expr
  kIf,           // branches: condition? and body; the first that holds
  kFor,          // target in expr if condition?: body, else_body
  kSet,          // target = expr
  kCapture,      // target = body, through expr if there is one
  kMacro,        // name(params = defaults?): body
  kFilterBlock,  // body through expr
  kScope,        // body, with its own variables
  kBreak,
  kContinue
};

struct Branch {
  ExprPtr condition;  // null: else
  Body body;
};

struct Param {
  std::string name;
  ExprPtr fallback;  // null: undefined
};

struct Stmt {
  StmtKind kind;
  int line = 0;
  MarkedString text;
  std::string name;
  Target target;
  ExprPtr expr;  // in kCapture and kFilterBlock the body's text is the variable kCaptured
  ExprPtr condition;
  std::vector<Branch> branches;
  std::vector<Param> params;
  Body body;
  Body else_body;
};

// Not an identifier, so no template can name it.
inline constexpr char kCaptured[] = "(captured)";

}  // namespace shoal::text::jinja
