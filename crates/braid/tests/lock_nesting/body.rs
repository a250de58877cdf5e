//! Walks through the body of a function: what it calls, and which locks of the tables are held there.

use super::index::{Function, Index, line};
use super::shapes::{has_let, is_lazy, member, names, unwrap_pattern};
use super::types::{Ty, of_type};
use std::collections::{BTreeMap, BTreeSet};
use syn::{Block, Expr, FnArg, Pat, Stmt};

mod calls;
mod infer;

/// What a body does at a place.
#[derive(Clone)]
pub enum Action {
    Lock,
    Call(Vec<usize>),
    Await,
}

/// An action, with the guards that live there.
#[derive(Clone)]
pub struct Event {
    pub line: usize,
    pub action: Action,
    /// The lines of the guards, and their names; the name is empty for a temporary.
    pub held: Vec<(usize, String)>,
    /// Whether it runs later, or elsewhere.
    pub is_detached: bool,
}

#[derive(Default)]
struct Variable {
    ty: Option<Ty>,
    guards: Vec<usize>,
    /// The actions of the closure that it is, or that it will run.
    lazy: Vec<Event>,
}

#[derive(Default)]
struct Scope {
    variables: BTreeMap<String, Variable>,
    guards: Vec<usize>,
}

/// Guards that live, or none where no code runs.
type Live = Option<BTreeSet<usize>>;

fn join(a: Live, b: Live) -> Live {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.union(&b).copied().collect()),
        (a, b) => a.or(b),
    }
}

/// Guards that are in the value of an expression.
type Value = Vec<usize>;

pub struct Walk<'a> {
    index: &'a Index<'a>,
    function: &'a Function<'a>,
    own: Option<Ty>,
    pub events: Vec<Event>,
    /// Where each guard was made, and its name.
    guards: Vec<(usize, String)>,
    live: Live,
    scopes: Vec<Scope>,
    temporaries: Vec<Vec<usize>>,
    breaks: Vec<Live>,
    detached: usize,
}

impl<'a> Walk<'a> {
    /// Returns what a function does.
    pub fn events(index: &'a Index<'a>, function: &'a Function<'a>) -> Vec<Event> {
        let mut walk = Walk {
            index,
            function,
            own: function.owner.as_deref().map(Ty::plain),
            events: Vec::new(),
            guards: Vec::new(),
            live: Some(BTreeSet::new()),
            scopes: vec![Scope::default()],
            temporaries: vec![Vec::new()],
            breaks: Vec::new(),
            detached: 0,
        };
        for input in &function.signature.inputs {
            match input {
                FnArg::Receiver(_) => {
                    let ty = walk.own.clone().unwrap_or_else(Ty::unknown);
                    walk.bind_name("self", &ty);
                }
                FnArg::Typed(typed) => {
                    let ty = walk.ty(&typed.ty);
                    walk.bind(&typed.pat, &ty);
                    // A guard that was handed over lives here; one that is borrowed is the caller's.
                    if index.has_guard(&ty) && !matches!(*typed.ty, syn::Type::Reference(_)) {
                        let guard = walk.new_guard(function.line);
                        walk.attach(&typed.pat, &[guard]);
                    }
                }
            }
        }
        walk.block(function.body);
        walk.events
    }

    fn ty(&self, ty: &syn::Type) -> Ty {
        of_type(ty, self.own.as_ref(), &self.function.parameters, &self.index.aliases)
    }

    // Guards

    fn new_guard(&mut self, line: usize) -> usize {
        self.guards.push((line, String::new()));
        if let Some(live) = &mut self.live {
            live.insert(self.guards.len() - 1);
        }
        self.guards.len() - 1
    }

    fn new_temporary(&mut self, line: usize) -> Value {
        let guard = self.new_guard(line);
        self.temporaries.last_mut().expect("a scope of temporaries").push(guard);
        vec![guard]
    }

    fn end(&mut self, guards: &[usize]) {
        if let Some(live) = &mut self.live {
            live.retain(|guard| !guards.contains(guard));
        }
    }

    /// Ends a scope of temporaries: those in `value` go on to the next outer one.
    fn end_temporaries(&mut self, value: &[usize]) {
        let ended = self.temporaries.pop().expect("a scope of temporaries");
        self.end_but(&ended, value);
    }

    fn end_but(&mut self, ended: &[usize], value: &[usize]) {
        let (kept, gone): (Vec<usize>, Vec<usize>) = ended.iter().partition(|guard| value.contains(guard));
        self.end(&gone);
        self.temporaries.last_mut().expect("a scope of temporaries").extend(kept);
    }

    fn end_scope(&mut self, value: &[usize]) {
        let ended = self.scopes.pop().expect("a scope").guards;
        self.end_but(&ended, value);
    }

    /// Lets the variables of a pattern own the guards, until the end of the scope.
    fn attach(&mut self, pattern: &Pat, guards: &[usize]) {
        if guards.is_empty() || matches!(pattern, Pat::Wild(_)) {
            return;
        }
        self.temporaries.iter_mut().for_each(|all| all.retain(|guard| !guards.contains(guard)));
        self.scopes.iter_mut().for_each(|scope| scope.guards.retain(|guard| !guards.contains(guard)));
        let names = names(pattern);
        let scope = self.scopes.last_mut().expect("a scope");
        scope.guards.extend(guards);
        let has_guard = |name: &&String| {
            let ty = scope.variables.get(*name).and_then(|variable| variable.ty.as_ref());
            ty.is_some_and(|ty| self.index.has_guard(ty))
        };
        let Some(name) = names.iter().find(has_guard).or(names.first()).cloned() else { return };
        guards.iter().for_each(|guard| self.guards[*guard].1.clone_from(&name));
        if let Some(variable) = scope.variables.get_mut(&name) {
            variable.guards = guards.to_vec();
        }
    }

    // Variables

    fn variable(&self, name: &str) -> Option<&Variable> {
        self.scopes.iter().rev().find_map(|scope| scope.variables.get(name))
    }

    fn bind_name(&mut self, name: &str, ty: &Ty) {
        let variable = Variable { ty: Some(ty.clone()), ..Variable::default() };
        self.scopes.last_mut().expect("a scope").variables.insert(name.to_owned(), variable);
    }

    fn bind(&mut self, pattern: &Pat, ty: &Ty) {
        match pattern {
            Pat::Ident(ident) => {
                let name = ident.ident.to_string();
                if !name.starts_with(char::is_uppercase) {
                    self.bind_name(&name, ty);
                }
                if let Some((_, inner)) = &ident.subpat {
                    self.bind(inner, ty);
                }
            }
            Pat::Tuple(tuple) => {
                for (number, inner) in tuple.elems.iter().enumerate() {
                    let of = if ty.name == "()" { ty.argument(number) } else { Ty::unknown() };
                    self.bind(inner, &of);
                }
            }
            Pat::TupleStruct(tuple) => {
                let owner = self.variant(&tuple.path);
                for (number, inner) in tuple.elems.iter().enumerate() {
                    let of = match owner.as_str() {
                        "Some" | "Ok" => ty.argument(0),
                        "Err" => ty.argument(1),
                        owner => self.index.field(&Ty::plain(owner), &number.to_string()),
                    };
                    self.bind(inner, &of);
                }
            }
            Pat::Struct(structure) => {
                let owner = Ty::plain(&self.variant(&structure.path));
                for field in &structure.fields {
                    let of = self.index.field(&owner, &member(&field.member));
                    self.bind(&field.pat, &of);
                }
            }
            Pat::Reference(inner) => self.bind(&inner.pat, ty),
            Pat::Paren(inner) => self.bind(&inner.pat, ty),
            Pat::Guard(inner) => self.bind(&inner.pat, ty),
            Pat::Or(or) => or.cases.iter().for_each(|case| self.bind(case, ty)),
            Pat::Slice(slice) => slice.elems.iter().for_each(|inner| self.bind(inner, &ty.item())),
            Pat::Type(typed) => {
                let ty = self.ty(&typed.ty);
                self.bind(&typed.pat, &ty);
            }
            _ => {}
        }
    }

    /// Returns the name under which the index has the fields of a struct or a variant.
    fn variant(&self, path: &syn::Path) -> String {
        let segments: Vec<String> = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        let own = self.own.as_ref().map_or("Self", |own| own.name.as_str());
        let named = |name: &str| if name == "Self" { own.to_owned() } else { name.to_owned() };
        match &segments[..] {
            [.., owner, name] if owner.starts_with(char::is_uppercase) => format!("{}::{name}", named(owner)),
            [.., name] => named(name),
            [] => String::new(),
        }
    }

    // Events

    fn record(&mut self, line: usize, action: Action) {
        let held = self.live.iter().flatten().map(|guard| self.guards[*guard].clone()).collect();
        self.events.push(Event { line, action, held, is_detached: self.detached > 0 });
    }

    fn mention(&mut self, name: &str, line: usize) {
        let lazy = self.variable(name).map(|variable| variable.lazy.clone()).unwrap_or_default();
        lazy.into_iter().for_each(|event| self.record(line, event.action));
    }

    // Statements

    fn block(&mut self, block: &'a Block) -> Value {
        self.scopes.push(Scope::default());
        let mut value = Value::new();
        for (number, statement) in block.stmts.iter().enumerate() {
            let is_last = number + 1 == block.stmts.len();
            self.temporaries.push(Vec::new());
            match statement {
                Stmt::Local(local) => self.local(local),
                Stmt::Expr(expression, None) if is_last => value = self.expression(expression),
                Stmt::Expr(expression, _) => drop(self.expression(expression)),
                Stmt::Macro(statement) => self.macro_call(&statement.mac),
                Stmt::Item(_) => {}
            }
            self.end_temporaries(&value);
        }
        self.end_scope(&value);
        value
    }

    fn local(&mut self, local: &'a syn::Local) {
        let Some(init) = &local.init else { return self.bind(&local.pat, &Ty::unknown()) };
        let from = self.events.len();
        let mut value = self.expression(&init.expr);
        value.extend(self.extended(&init.expr));
        let ty = self.type_of(&init.expr);
        if let Some((_, diverge)) = &init.diverge {
            let ended = std::mem::take(self.temporaries.last_mut().expect("a scope of temporaries"));
            let live = self.live.clone();
            self.end(&ended);
            self.expression(diverge);
            self.live = live;
            let gone: Vec<usize> = ended.into_iter().filter(|guard| !value.contains(guard)).collect();
            self.end(&gone);
        }
        self.bind(&local.pat, &ty);
        self.attach(&local.pat, &value);
        if matches!(&*init.expr, Expr::Struct(_) | Expr::Call(_) | Expr::Path(_)) {
            // Whatever ends the block drops it, and before any lock that was there first.
            let found = self.index.drops_of(&ty);
            self.called(line(local.let_token.span), found);
        }
        if let (Pat::Ident(name), true) = (unwrap_pattern(&local.pat), is_lazy(&init.expr)) {
            let lazy = self.events[from..].iter().filter(|event| !event.is_detached).cloned().collect();
            let scope = self.scopes.last_mut().expect("a scope");
            if let Some(variable) = scope.variables.get_mut(&name.ident.to_string()) {
                variable.lazy = lazy;
            }
        }
    }

    /// Returns the temporaries of `let x = &...;`, which live as long as the variable.
    fn extended(&self, init: &Expr) -> Value {
        let Expr::Reference(reference) = init else { return Value::new() };
        let mut inner = &*reference.expr;
        loop {
            inner = match inner {
                Expr::Field(field) => &field.base,
                Expr::Index(index) => &index.expr,
                Expr::Paren(paren) => &paren.expr,
                Expr::Unary(unary) => &unary.expr,
                Expr::Reference(reference) => &reference.expr,
                Expr::MethodCall(_) | Expr::Call(_) if self.index.has_guard(&self.type_of(inner)) => {
                    return self.temporaries.last().cloned().unwrap_or_default();
                }
                _ => return Value::new(),
            };
        }
    }

    // Expressions

    /// Walks through an expression that is only looked at: a variable is not moved.
    fn place(&mut self, expression: &'a Expr) -> Value {
        match expression {
            Expr::Path(path) => {
                if let Some(name) = path.path.get_ident() {
                    self.mention(&name.to_string(), line(name.span()));
                }
            }
            Expr::Field(field) => drop(self.place(&field.base)),
            Expr::Index(index) => {
                self.place(&index.expr);
                self.expression(&index.index);
            }
            Expr::Paren(paren) => return self.place(&paren.expr),
            Expr::Unary(unary) => drop(self.place(&unary.expr)),
            _ => return self.expression(expression),
        }
        Value::new()
    }

    /// Walks through an operand, whose temporaries end with it.
    fn terminated(&mut self, expression: &'a Expr) -> Value {
        self.temporaries.push(Vec::new());
        let value = self.expression(expression);
        self.end_temporaries(&value);
        value
    }

    fn expression(&mut self, expression: &'a Expr) -> Value {
        match expression {
            Expr::Path(path) => {
                let Some(name) = path.path.get_ident() else { return Value::new() };
                self.mention(&name.to_string(), line(name.span()));
                self.variable(&name.to_string()).map(|variable| variable.guards.clone()).unwrap_or_default()
            }
            Expr::MethodCall(call) => self.method_call(call),
            Expr::Call(call) => self.call(call),
            Expr::Await(of) => {
                let value = self.expression(&of.base);
                self.record(line(of.await_token.span), Action::Await);
                value
            }
            Expr::Try(of) => self.expression(&of.expr),
            Expr::Paren(paren) => self.expression(&paren.expr),
            Expr::Group(group) => self.expression(&group.expr),
            Expr::Cast(cast) => self.expression(&cast.expr),
            Expr::Reference(reference) => {
                self.place(&reference.expr);
                Value::new()
            }
            Expr::Field(_) | Expr::Index(_) | Expr::Unary(_) => {
                self.place(expression);
                Value::new()
            }
            Expr::Binary(binary) => {
                let is_lazy = matches!(binary.op, syn::BinOp::And(_) | syn::BinOp::Or(_));
                for operand in [&*binary.left, &*binary.right] {
                    let is_chain = matches!(operand, Expr::Let(_)) || has_let(operand);
                    let _ = if is_lazy && !is_chain { self.terminated(operand) } else { self.expression(operand) };
                }
                Value::new()
            }
            Expr::Let(of) => {
                let value = self.expression(&of.expr);
                let ty = self.type_of(&of.expr);
                self.bind(&of.pat, &ty);
                // It stays a temporary of the condition, which outlives the pattern.
                self.name_guards(&of.pat, &value);
                Value::new()
            }
            Expr::Block(block) => self.block(&block.block),
            Expr::Unsafe(block) => self.block(&block.block),
            Expr::If(of) => self.condition(of),
            Expr::Match(of) => self.matching(of),
            Expr::Loop(of) => {
                self.looping(|walk| drop(walk.block(&of.body)), false);
                Value::new()
            }
            Expr::While(of) => {
                self.scopes.push(Scope::default());
                self.temporaries.push(Vec::new());
                let has_let = has_let(&of.cond);
                let _ = if has_let { self.expression(&of.cond) } else { self.terminated(&of.cond) };
                self.looping(|walk| drop(walk.block(&of.body)), true);
                self.end_temporaries(&[]);
                self.end_scope(&[]);
                Value::new()
            }
            Expr::ForLoop(of) => {
                self.temporaries.push(Vec::new());
                self.expression(&of.expr);
                let item = self.type_of(&of.expr).item();
                self.scopes.push(Scope::default());
                self.bind(&of.pat, &item);
                self.looping(|walk| drop(walk.block(&of.body)), true);
                self.end_scope(&[]);
                self.end_temporaries(&[]);
                Value::new()
            }
            Expr::Return(of) => {
                of.expr.iter().for_each(|value| drop(self.expression(value)));
                self.live = None;
                Value::new()
            }
            Expr::Break(of) => {
                let value = of.expr.as_ref().map(|value| self.expression(value)).unwrap_or_default();
                let live = self.live.take();
                if let Some(at) = self.breaks.pop() {
                    self.breaks.push(join(at, live));
                }
                value
            }
            Expr::Continue(_) => {
                self.live = None;
                Value::new()
            }
            Expr::Assign(assign) => self.assign(assign),
            Expr::Struct(structure) => {
                let fields = structure.fields.iter().map(|field| &field.expr).chain(structure.rest.as_deref());
                fields.flat_map(|field| self.expression(field)).collect()
            }
            Expr::Tuple(tuple) => tuple.elems.iter().flat_map(|item| self.expression(item)).collect(),
            Expr::Array(array) => array.elems.iter().flat_map(|item| self.expression(item)).collect(),
            Expr::Repeat(repeat) => self.expression(&repeat.expr),
            Expr::Range(range) => {
                range.start.iter().chain(&range.end).for_each(|end| drop(self.expression(end)));
                Value::new()
            }
            Expr::Closure(closure) => {
                self.closure(closure, &Ty::unknown(), false);
                Value::new()
            }
            Expr::Async(of) => {
                self.apart(false, |walk| drop(walk.block(&of.block)));
                Value::new()
            }
            Expr::Macro(of) => {
                self.macro_call(&of.mac);
                Value::new()
            }
            _ => Value::new(),
        }
    }

    fn name_guards(&mut self, pattern: &Pat, guards: &[usize]) {
        if let Some(name) = names(pattern).first() {
            guards.iter().for_each(|guard| self.guards[*guard].1.clone_from(name));
            let scope = self.scopes.last_mut().expect("a scope");
            if let Some(variable) = scope.variables.get_mut(name) {
                variable.guards = guards.to_vec();
            }
        }
    }

    fn assign(&mut self, assign: &'a syn::ExprAssign) -> Value {
        let value = self.expression(&assign.right);
        self.place(&assign.left);
        let Expr::Path(path) = &*assign.left else { return Value::new() };
        let Some(name) = path.path.get_ident().map(ToString::to_string) else { return Value::new() };
        let Some(at) = self.scopes.iter().rposition(|scope| scope.variables.contains_key(&name)) else {
            return Value::new();
        };
        let old = self.scopes[at].variables.get(&name).map(|variable| variable.guards.clone()).unwrap_or_default();
        self.end(&old);
        if !value.is_empty() {
            self.temporaries.iter_mut().for_each(|all| all.retain(|guard| !value.contains(guard)));
            value.iter().for_each(|guard| self.guards[*guard].1.clone_from(&name));
            self.scopes[at].guards.extend(&value);
        }
        if let Some(variable) = self.scopes[at].variables.get_mut(&name) {
            variable.guards = value;
        }
        Value::new()
    }

    fn condition(&mut self, of: &'a syn::ExprIf) -> Value {
        self.scopes.push(Scope::default());
        self.temporaries.push(Vec::new());
        let _ = if has_let(&of.cond) { self.expression(&of.cond) } else { self.terminated(&of.cond) };
        let before = self.live.clone();
        let kept = self.temporaries.last().cloned().unwrap_or_default();
        let mut value = self.block(&of.then_branch);
        self.end_temporaries(&value);
        self.end_scope(&value);
        let after = std::mem::replace(&mut self.live, before);
        self.end(&kept);
        if let Some((_, other)) = &of.else_branch {
            value.extend(self.expression(other));
        }
        let live = self.live.take();
        self.live = join(after, live);
        value
    }

    fn matching(&mut self, of: &'a syn::ExprMatch) -> Value {
        let scrutinee = self.expression(&of.expr);
        let ty = self.type_of(&of.expr);
        let before = self.live.clone();
        let (mut after, mut value) = (None, Value::new());
        for arm in &of.arms {
            self.live.clone_from(&before);
            self.scopes.push(Scope::default());
            self.bind(&arm.pat, &ty);
            self.name_guards(&arm.pat, &scrutinee);
            if let Pat::Guard(guard) = &arm.pat {
                self.terminated(&guard.guard);
            }
            let of_arm = self.terminated(&arm.body);
            self.end_scope(&of_arm);
            after = join(after, self.live.take());
            value.extend(of_arm);
        }
        self.live = after;
        value
    }

    fn looping(&mut self, body: impl FnOnce(&mut Self), may_end: bool) {
        let before = self.live.clone();
        self.breaks.push(None);
        body(self);
        let ended = self.breaks.pop().flatten();
        let again = self.live.take();
        self.live = if may_end { join(before, join(again, ended)) } else { ended };
        let known: BTreeSet<usize> = self.scopes.iter().flat_map(|scope| &scope.guards).copied().collect();
        let temporaries: BTreeSet<usize> = self.temporaries.iter().flatten().copied().collect();
        if let Some(live) = &mut self.live {
            live.retain(|guard| known.contains(guard) || temporaries.contains(guard));
        }
    }

    /// Walks through code that does not run here.
    fn apart(&mut self, is_detached: bool, body: impl FnOnce(&mut Self)) {
        let live = self.live.replace(BTreeSet::new());
        let breaks = std::mem::take(&mut self.breaks);
        self.detached += usize::from(is_detached);
        self.temporaries.push(Vec::new());
        body(self);
        self.temporaries.pop();
        self.detached -= usize::from(is_detached);
        self.breaks = breaks;
        self.live = live;
    }

    fn closure(&mut self, closure: &'a syn::ExprClosure, item: &Ty, is_spawned: bool) {
        let run = |walk: &mut Self| {
            walk.scopes.push(Scope::default());
            let is_one = closure.inputs.len() == 1;
            for (number, input) in closure.inputs.iter().enumerate() {
                let of = if is_one || number > 0 && item.name != "()" { item.clone() } else { item.argument(number) };
                walk.bind(input, &of);
            }
            walk.terminated(&closure.body);
            walk.end_scope(&[]);
        };
        if is_spawned || closure.asyncness.is_some() {
            return self.apart(is_spawned, run);
        }
        let live = self.live.clone();
        let breaks = std::mem::take(&mut self.breaks);
        run(self);
        self.breaks = breaks;
        self.live = live;
    }
}
