//! The types of expressions.

use super::super::shapes::{last, member};
use super::super::types::{Ty, of_path, of_std_method};
use super::{Scope, Walk};
use syn::{Block, Expr, Member, Stmt};

impl Walk<'_> {
    pub(super) fn type_of(&self, expression: &Expr) -> Ty {
        match expression {
            Expr::Path(path) => match path.path.get_ident() {
                Some(name) => match self.variable(&name.to_string()).and_then(|variable| variable.ty.clone()) {
                    Some(ty) => ty,
                    None if name.to_string().starts_with(char::is_uppercase) => Ty::plain(&name.to_string()),
                    None => Ty::unknown(),
                },
                None => {
                    let owner = path.path.segments.iter().rev().nth(1).map(|segment| segment.ident.to_string());
                    let owner = owner.filter(|owner| owner.starts_with(char::is_uppercase));
                    owner.map_or_else(Ty::unknown, |owner| match owner.as_str() {
                        "Self" => self.own.clone().unwrap_or_else(Ty::unknown),
                        owner => Ty::plain(owner),
                    })
                }
            },
            Expr::Field(field) => {
                let base = self.type_of(&field.base);
                match &field.member {
                    Member::Unnamed(at) if base.name == "()" => base.argument(at.index as usize),
                    named => self.index.field(&base, &member(named)),
                }
            }
            Expr::MethodCall(call) => self.type_of_method(call),
            Expr::Call(call) => self.type_of_call(call),
            Expr::Try(of) => self.type_of(&of.expr).item(),
            Expr::Await(of) => {
                let ty = self.type_of(&of.base);
                let is_lock = matches!(&*of.base, Expr::MethodCall(call)
                    if ["lock", "read", "write"].contains(&call.method.to_string().as_str()));
                if is_lock && ty.name == "Result" { ty.argument(0) } else { ty }
            }
            Expr::Reference(reference) => self.type_of(&reference.expr),
            Expr::Paren(paren) => self.type_of(&paren.expr),
            Expr::Group(group) => self.type_of(&group.expr),
            Expr::Unary(unary) => {
                let ty = self.type_of(&unary.expr);
                match unary.op {
                    syn::UnOp::Deref(_) => self.index.deref(&ty).unwrap_or(ty),
                    _ => ty,
                }
            }
            Expr::Cast(cast) => self.ty(&cast.ty),
            Expr::Struct(structure) => {
                let name = self.variant(&structure.path);
                Ty::plain(name.split("::").next().unwrap_or_default())
            }
            Expr::Tuple(tuple) => Ty::of("()", tuple.elems.iter().map(|item| self.type_of(item)).collect()),
            Expr::Array(array) => {
                Ty::of("Vec", vec![array.elems.first().map_or_else(Ty::unknown, |item| self.type_of(item))])
            }
            Expr::Index(index) => {
                let ty = self.type_of(&index.expr);
                if ty.name == "Map" { ty.argument(1) } else { ty.item() }
            }
            Expr::Binary(_) | Expr::Lit(_) => Ty::plain("literal"),
            Expr::Range(_) => Ty::of("Iter", vec![Ty::plain("literal")]),
            Expr::Closure(closure) => Ty::of("Fn", vec![self.type_of(&closure.body)]),
            Expr::Block(block) => self.type_of_block(&block.block),
            Expr::If(of) => {
                let ty = self.type_of_block(&of.then_branch);
                match &of.else_branch {
                    Some((_, other)) if ty.is_unknown() || ty.name == "!" => self.type_of(other),
                    _ => ty,
                }
            }
            Expr::Match(of) => {
                let mut arms = of.arms.iter().map(|arm| self.type_of(&arm.body));
                arms.find(|ty| !ty.is_unknown() && ty.name != "!").unwrap_or_else(Ty::unknown)
            }
            Expr::Return(_) | Expr::Break(_) | Expr::Continue(_) => Ty::plain("!"),
            Expr::Macro(of) => match last(&of.mac.path).as_str() {
                "format" | "concat" | "stringify" | "env" => Ty::plain("String"),
                "vec" => Ty::of("Vec", vec![Ty::unknown()]),
                "matches" | "cfg" => Ty::plain("bool"),
                _ => Ty::unknown(),
            },
            _ => Ty::unknown(),
        }
    }

    pub(super) fn type_of_block(&self, block: &Block) -> Ty {
        match &block.stmts[..] {
            [] => Ty::plain("()"),
            [.., Stmt::Expr(expression, None)] => self.type_of(expression),
            _ => Ty::unknown(),
        }
    }

    pub(super) fn outputs(&self, functions: &[usize]) -> Option<Ty> {
        let (first, rest) = functions.split_first()?;
        let first = &self.index.functions[*first].output;
        let is_same = rest.iter().all(|other| self.index.functions[*other].output == *first);
        is_same.then(|| first.clone())
    }

    pub(super) fn type_of_call(&self, call: &syn::ExprCall) -> Ty {
        let Expr::Path(path) = &*call.func else { return Ty::unknown() };
        let segments: Vec<String> = path.path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        let first = || call.args.first().map_or_else(Ty::unknown, |argument| self.type_of(argument));
        let slices: Vec<&str> = segments.iter().map(String::as_str).collect();
        match slices[..] {
            ["Some"] => return Ty::of("Option", vec![first()]),
            ["Ok"] => return Ty::of("Result", vec![first()]),
            ["Err"] => return Ty::of("Result", vec![Ty::unknown(), first()]),
            [.., "Arc" | "Rc" | "Box", "clone" | "new" | "pin"] => return first(),
            [.., "mem", "take" | "replace"] | [.., "block_in_place"] => {
                let ty = first();
                return if ty.name == "Fn" { ty.argument(0) } else { ty };
            }
            [.., "Mutex" | "RwLock", "new"] => {
                return Ty::of(&segments[segments.len() - 2], vec![first()]);
            }
            [name] if self.variable(name).is_some() => {
                return self.variable(name).and_then(|variable| variable.ty.clone()).map_or_else(Ty::unknown, |ty| {
                    if ["Fn", "FnMut", "FnOnce"].contains(&ty.name.as_str()) { ty.argument(0) } else { Ty::unknown() }
                });
            }
            _ => {}
        }
        let found = self.index.functions_of_path(self.function.file, &segments, self.own.as_ref());
        if let Some(ty) = self.outputs(&found) {
            return ty;
        }
        match slices[..] {
            [.., owner, name] if owner.starts_with(char::is_uppercase) && name.starts_with(char::is_uppercase) => {
                Ty::plain(owner)
            }
            [.., name] if name.starts_with(char::is_uppercase) => {
                of_path(&path.path, self.own.as_ref(), &self.function.parameters, &self.index.aliases)
            }
            [.., owner, "new" | "default" | "from" | "with_capacity"] if owner.starts_with(char::is_uppercase) => {
                match owner {
                    "BTreeMap" | "HashMap" => Ty::plain("Map"),
                    "BTreeSet" | "HashSet" | "VecDeque" => Ty::plain("Vec"),
                    "Self" => self.own.clone().unwrap_or_else(Ty::unknown),
                    _ => Ty::plain(owner),
                }
            }
            _ => Ty::unknown(),
        }
    }

    pub(super) fn type_of_method(&self, call: &syn::ExprMethodCall) -> Ty {
        let on = self.type_of(&call.receiver);
        let name = call.method.to_string();
        let found = self.functions_of_method(call, &on);
        if self.is_lock(call, &on, &found) && on.name != "RwLock" && on.name != "Mutex" {
            return Ty::of("RwLockGuard", vec![Ty::plain(crate::TABLES)]);
        }
        if let Some(ty) = self.outputs(&found) {
            return ty;
        }
        if on.is_unknown() {
            return match name.as_str() {
                "len" | "is_empty" | "is_some" | "is_none" | "any" | "all" | "contains" | "count" => Ty::plain("bool"),
                "to_string" | "display" => Ty::plain("String"),
                _ => Ty::unknown(),
            };
        }
        if let Some(ty) = self.index.required.get(&(on.name.clone(), name.clone())) {
            return ty.clone();
        }
        let item = on.item();
        let closure = call.args.iter().find_map(|argument| match argument {
            Expr::Closure(closure) => Some(self.type_of_closure(closure, &item)),
            Expr::Path(path) if path.path.segments.len() > 1 => {
                let segments: Vec<String> =
                    path.path.segments.iter().map(|segment| segment.ident.to_string()).collect();
                if segments[segments.len() - 2..] == ["Arc", "clone"] {
                    return Some(item.clone());
                }
                self.outputs(&self.index.functions_of_path(self.function.file, &segments, self.own.as_ref()))
            }
            Expr::Path(path) => {
                let ty = self.variable(&path.path.get_ident()?.to_string())?.ty.clone()?;
                (ty.name == "Fn").then(|| ty.argument(0))
            }
            _ => None,
        });
        if name == "collect"
            && let Some(turbofish) = &call.turbofish
            && let Some(syn::GenericArgument::Type(ty)) = turbofish.args.first()
        {
            let ty = self.ty(ty);
            return if ty.name == "Vec" && ty.item().is_unknown() { Ty::of("Vec", vec![item]) } else { ty };
        }
        let derefs = self.index.derefs(&on);
        derefs.iter().find_map(|on| of_std_method(on, &name, closure.clone())).unwrap_or_else(Ty::unknown)
    }

    /// Returns what a closure returns that is given an `item`.
    pub(super) fn type_of_closure(&self, closure: &syn::ExprClosure, item: &Ty) -> Ty {
        let mut inner = Walk {
            index: self.index,
            function: self.function,
            own: self.own.clone(),
            events: Vec::new(),
            guards: Vec::new(),
            live: None,
            scopes: vec![Scope::default()],
            temporaries: Vec::new(),
            breaks: Vec::new(),
            detached: 0,
        };
        for scope in &self.scopes {
            for (name, variable) in &scope.variables {
                inner.bind_name(name, variable.ty.as_ref().unwrap_or(&Ty::unknown()));
            }
        }
        closure.inputs.iter().for_each(|input| inner.bind(input, item));
        inner.type_of(&closure.body)
    }
}
