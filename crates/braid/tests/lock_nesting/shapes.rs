//! What the shape of an expression or a pattern tells by itself.

use syn::{Expr, Member, Pat};

/// Methods that keep a closure for later: what calls them is lazy.
const LAZY: [&str; 16] = [
    "map",
    "filter",
    "filter_map",
    "flat_map",
    "inspect",
    "take_while",
    "skip_while",
    "map_while",
    "chain",
    "zip",
    "rev",
    "take",
    "skip",
    "enumerate",
    "peekable",
    "flatten",
];

/// Returns the names that a pattern binds.
pub fn names(pattern: &Pat) -> Vec<String> {
    match pattern {
        Pat::Ident(ident) => vec![ident.ident.to_string()],
        Pat::Tuple(tuple) => tuple.elems.iter().flat_map(names).collect(),
        Pat::TupleStruct(tuple) => tuple.elems.iter().flat_map(names).collect(),
        Pat::Struct(structure) => structure.fields.iter().flat_map(|field| names(&field.pat)).collect(),
        Pat::Reference(inner) => names(&inner.pat),
        Pat::Paren(inner) => names(&inner.pat),
        Pat::Guard(inner) => names(&inner.pat),
        Pat::Type(typed) => names(&typed.pat),
        Pat::Or(or) => or.cases.first().map(names).unwrap_or_default(),
        Pat::Slice(slice) => slice.elems.iter().flat_map(names).collect(),
        _ => Vec::new(),
    }
}

pub fn unwrap_pattern(pattern: &Pat) -> &Pat {
    match pattern {
        Pat::Type(typed) => &typed.pat,
        _ => pattern,
    }
}

/// Returns whether an expression keeps a closure that will run later.
pub fn is_lazy(expression: &Expr) -> bool {
    match expression {
        Expr::Closure(_) => true,
        Expr::MethodCall(call) if LAZY.contains(&call.method.to_string().as_str()) => {
            call.args.iter().any(|argument| matches!(argument, Expr::Closure(_))) || is_lazy(&call.receiver)
        }
        _ => false,
    }
}

pub fn has_let(expression: &Expr) -> bool {
    match expression {
        Expr::Let(_) => true,
        Expr::Binary(binary) if matches!(binary.op, syn::BinOp::And(_)) => {
            has_let(&binary.left) || has_let(&binary.right)
        }
        _ => false,
    }
}

pub fn member(member: &Member) -> String {
    match member {
        Member::Named(name) => name.to_string(),
        Member::Unnamed(at) => at.index.to_string(),
    }
}

pub fn last(path: &syn::Path) -> String {
    path.segments.last().map(|segment| segment.ident.to_string()).unwrap_or_default()
}

/// Returns the last name of a receiver: the variable, the field, or the method.
pub fn last_name(receiver: &Expr) -> String {
    match receiver {
        Expr::Path(path) => last(&path.path),
        Expr::Field(field) => member(&field.member),
        Expr::MethodCall(call) => call.method.to_string(),
        Expr::Paren(paren) => last_name(&paren.expr),
        Expr::Reference(reference) => last_name(&reference.expr),
        Expr::Unary(unary) => last_name(&unary.expr),
        _ => String::new(),
    }
}
