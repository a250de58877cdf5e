//! Calls: of functions, of methods, of macros, and what is spawned.

use super::super::index::line;
use super::super::shapes::{last, last_name};
use super::super::types::Ty;
use super::{Action, Value, Walk};
use proc_macro2::{Delimiter, TokenStream, TokenTree};
use syn::parse::Parser;
use syn::{Block, Expr};

/// Functions that run what they are given later, or elsewhere.
const SPAWNING: [&str; 7] =
    ["spawn", "spawn_in", "spawn_blocking", "spawn_local", "spawn_in_blocking", "post", "on_each_shard"];

/// Receivers that stand for the tables where their type is not known.
const NAMES: [&str; 3] = ["inventory", "control", "this"];

impl<'a> Walk<'a> {
    /// Walks through an argument of a spawning function.
    pub(super) fn spawned(&mut self, argument: &'a Expr) {
        match argument {
            Expr::Closure(closure) => self.closure(closure, &Ty::unknown(), true),
            Expr::Async(of) => self.apart(true, |walk| drop(walk.block(&of.block))),
            Expr::Call(call) if matches!(&*call.func, Expr::Path(path) if last(&path.path) == "new") => {
                call.args.iter().for_each(|argument| self.spawned(argument));
            }
            _ => {
                // A future that is spawned runs elsewhere; an argument that is no future runs here.
                let from = self.events.len();
                self.expression(argument);
                let is_future = self.events[from..].last().is_some_and(|event| self.is_async(&event.action));
                if let Some(event) = self.events.last_mut().filter(|_| is_future) {
                    event.is_detached = true;
                }
            }
        }
    }

    pub(super) fn is_async(&self, action: &Action) -> bool {
        let is_async = |id: &usize| self.index.functions[*id].signature.asyncness.is_some();
        matches!(action, Action::Call(functions) if functions.iter().all(is_async))
    }

    pub(super) fn call(&mut self, call: &'a syn::ExprCall) -> Value {
        let Expr::Path(path) = &*call.func else {
            self.place(&call.func);
            return call.args.iter().flat_map(|argument| self.expression(argument)).collect();
        };
        let segments: Vec<String> = path.path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        let name = last(&path.path);
        let at = path.path.segments.last().map_or(0, |segment| line(segment.ident.span()));
        if SPAWNING.contains(&name.as_str()) {
            call.args.iter().for_each(|argument| self.spawned(argument));
            return Value::new();
        }
        let mut moved = Value::new();
        for argument in &call.args {
            match argument {
                Expr::Closure(closure) => self.closure(closure, &Ty::unknown(), false),
                Expr::Async(of) if name == "block_on" => drop(self.block(&of.block)),
                _ => moved.extend(self.expression(argument)),
            }
        }
        if segments.len() == 1 && self.variable(&name).is_some() {
            self.mention(&name, at);
            return Value::new();
        }
        if name == "drop" {
            self.end(&moved);
            let ty = call.args.first().map_or_else(Ty::unknown, |argument| self.type_of(argument));
            let found = self.index.drops_of(&ty);
            self.called(at, found);
            return Value::new();
        }
        if name.starts_with(char::is_uppercase) {
            return moved; // a tuple struct or a variant, which has what it is given
        }
        let found = self.index.functions_of_path(self.function.file, &segments, self.own.as_ref());
        self.called(at, found);
        if name == "block_on" {
            self.record(at, Action::Await);
        }
        let ty = self.type_of_call(call);
        self.result(at, &ty, moved)
    }

    pub(super) fn called(&mut self, at: usize, found: Vec<usize>) {
        if !found.is_empty() {
            self.record(at, Action::Call(found));
        }
    }

    /// Returns the value of a call that was given the guards `moved`.
    pub(super) fn result(&mut self, at: usize, ty: &Ty, moved: Value) -> Value {
        if ty.name == "!" {
            self.live = None;
        }
        match self.index.has_guard(ty) {
            true if moved.is_empty() => self.new_temporary(at),
            true => moved,
            false => {
                self.end(&moved);
                Value::new()
            }
        }
    }

    pub(super) fn method_call(&mut self, call: &'a syn::ExprMethodCall) -> Value {
        let name = call.method.to_string();
        let at = line(call.method.span());
        let on = self.type_of(&call.receiver);
        if SPAWNING.contains(&name.as_str()) && !call.args.is_empty() {
            self.place(&call.receiver);
            call.args.iter().for_each(|argument| self.spawned(argument));
            return Value::new();
        }
        let receiver = self.place(&call.receiver);
        let mut moved = Value::new();
        for argument in &call.args {
            match argument {
                Expr::Closure(closure) => self.closure(closure, &on.item(), false),
                Expr::Async(of) if name == "block_on" => drop(self.block(&of.block)),
                Expr::Path(path) if path.path.segments.len() > 1 => {
                    // A function that is given by its name.
                    let segments: Vec<String> =
                        path.path.segments.iter().map(|segment| segment.ident.to_string()).collect();
                    let found = self.index.functions_of_path(self.function.file, &segments, self.own.as_ref());
                    self.called(at, found);
                }
                _ => moved.extend(self.expression(argument)),
            }
        }
        let found = self.functions_of_method(call, &on);
        let is_lock = self.is_lock(call, &on, &found);
        if is_lock {
            self.record(at, Action::Lock);
        } else {
            self.called(at, found);
        }
        if name == "block_on" {
            self.record(at, Action::Await);
        }
        let ty = self.type_of_method(call);
        let from_receiver = !self.index.has_guard(&on) || !on.name.ends_with("Guard");
        if !receiver.is_empty() && from_receiver && self.index.has_guard(&ty) {
            return receiver;
        }
        self.result(at, &ty, moved)
    }

    pub(super) fn functions_of_method(&self, call: &syn::ExprMethodCall, on: &Ty) -> Vec<usize> {
        let name = call.method.to_string();
        if on.is_unknown() {
            return self.index.methods_named(&name, call.args.len());
        }
        self.index.methods_of(on, &name)
    }

    /// Returns whether a method call is the lock of the tables itself.
    pub(super) fn is_lock(&self, call: &syn::ExprMethodCall, on: &Ty, found: &[usize]) -> bool {
        let name = call.method.to_string();
        if !call.args.is_empty() || !["read", "write", "lock"].contains(&name.as_str()) {
            return false;
        }
        if ["RwLock", "Mutex"].contains(&on.name.as_str()) {
            return on.argument(0).name == crate::TABLES;
        }
        found.is_empty() && !self.knows(on) && name != "lock" && NAMES.contains(&last_name(&call.receiver).as_str())
    }

    /// Returns whether the roots define a type.
    pub(super) fn knows(&self, ty: &Ty) -> bool {
        self.index.fields.keys().any(|(owner, _)| *owner == ty.name)
            || self.index.methods.keys().any(|(owner, _)| *owner == ty.name)
    }

    pub(super) fn macro_call(&mut self, of: &'a syn::Macro) {
        let name = last(&of.path);
        self.tokens(of.tokens.clone());
        if ["select", "join", "try_join"].contains(&name.as_str()) {
            let at = of.path.segments.last().map_or(0, |segment| line(segment.ident.span()));
            self.record(at, Action::Await);
        }
        if ["panic", "unreachable", "todo", "unimplemented", "bail"].contains(&name.as_str()) {
            self.live = None;
        }
    }

    /// Walks through the arguments of a macro, as far as they are expressions.
    pub(super) fn tokens(&mut self, tokens: TokenStream) {
        let mut parts = vec![Vec::new()];
        for token in tokens {
            match &token {
                TokenTree::Punct(comma) if comma.as_char() == ',' => parts.push(Vec::new()),
                TokenTree::Punct(semicolon) if semicolon.as_char() == ';' => parts.push(Vec::new()),
                _ => parts.last_mut().expect("a part").push(token),
            }
        }
        for part in parts {
            self.part(part);
        }
    }

    pub(super) fn part(&mut self, part: Vec<TokenTree>) {
        let is_mark = |token: &TokenTree| matches!(token, TokenTree::Punct(mark) if "?%".contains(mark.as_char()));
        let equals = part.iter().position(|token| matches!(token, TokenTree::Punct(mark) if mark.as_char() == '='));
        let tries = [0, 1, equals.map_or(0, |at| at + 1), equals.map_or(0, |at| at + 2)];
        for from in tries {
            let Some(rest) = part.get(from..).filter(|rest| !rest.is_empty()) else { continue };
            if from == 1 && !is_mark(&part[0]) {
                continue;
            }
            let tokens: TokenStream = rest.iter().cloned().collect();
            if let Ok(expression) = Expr::parse_without_eager_brace.parse2(tokens) {
                // The syntax of macros is small; it is kept until the end of the process.
                let expression: &'static Expr = Box::leak(Box::new(expression));
                self.expression(expression);
                return;
            }
        }
        // Not an expression, such as the arms of `select!`.
        for token in part {
            if let TokenTree::Group(group) = token {
                if group.delimiter() == Delimiter::Brace
                    && let Ok(statements) = Block::parse_within.parse2(group.stream())
                {
                    let brace_token = syn::token::Brace::default();
                    let block: &'static Block = Box::leak(Box::new(Block { brace_token, stmts: statements }));
                    self.block(block);
                } else {
                    self.tokens(group.stream());
                }
            }
        }
    }
}
