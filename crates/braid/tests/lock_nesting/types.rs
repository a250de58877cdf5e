//! Types, as far as they tell what a method call calls. References and smart pointers are left out.

use std::collections::BTreeMap;
use syn::punctuated::Punctuated;
use syn::{GenericArgument, PathArguments, ReturnType, Token, Type, TypeParamBound};

/// A type: the last segment of its path, and its type arguments.
#[derive(Clone, Debug, PartialEq)]
pub struct Ty {
    pub name: String,
    pub arguments: Vec<Ty>,
}

impl Ty {
    pub fn plain(name: &str) -> Ty {
        Ty { name: name.to_owned(), arguments: Vec::new() }
    }

    pub fn of(name: &str, arguments: Vec<Ty>) -> Ty {
        Ty { name: name.to_owned(), arguments }
    }

    pub fn unknown() -> Ty {
        Ty::plain("?")
    }

    pub fn is_unknown(&self) -> bool {
        self.name == "?"
    }

    pub fn argument(&self, number: usize) -> Ty {
        self.arguments.get(number).cloned().unwrap_or_else(Ty::unknown)
    }

    /// Returns the type of the items that it iterates over, or of the value in it.
    pub fn item(&self) -> Ty {
        match self.name.as_str() {
            "Map" => Ty::of("()", self.arguments.clone()),
            "Option" | "Result" | "Vec" | "Iter" => self.argument(0),
            _ => Ty::unknown(),
        }
    }
}

/// Transparent for a method call.
const POINTERS: [&str; 9] =
    ["Arc", "Rc", "Box", "Pin", "Cow", "MutexGuard", "OwnedMutexGuard", "LazyLock", "ManuallyDrop"];

/// Returns the type that `ty` names, where `Self` is `own`.
pub fn of_type(ty: &Type, own: Option<&Ty>, parameters: &BTreeMap<String, Ty>, aliases: &BTreeMap<String, Ty>) -> Ty {
    let inner = |ty: &Type| of_type(ty, own, parameters, aliases);
    match ty {
        Type::Reference(reference) => inner(&reference.elem),
        Type::Paren(paren) => inner(&paren.elem),
        Type::Group(group) => inner(&group.elem),
        Type::Ptr(_) | Type::FnPtr(_) => Ty::plain("fn"),
        Type::Never(_) => Ty::plain("!"),
        Type::Slice(slice) => Ty::of("Vec", vec![inner(&slice.elem)]),
        Type::Array(array) => Ty::of("Vec", vec![inner(&array.elem)]),
        Type::Tuple(tuple) => Ty::of("()", tuple.elems.iter().map(inner).collect()),
        Type::ImplTrait(of) => of_bounds(&of.bounds, own, parameters, aliases),
        Type::TraitObject(of) => of_bounds(&of.bounds, own, parameters, aliases),
        Type::Path(path) => of_path(&path.path, own, parameters, aliases),
        _ => Ty::unknown(),
    }
}

/// Returns the type that a path names.
pub fn of_path(
    path: &syn::Path,
    own: Option<&Ty>,
    parameters: &BTreeMap<String, Ty>,
    aliases: &BTreeMap<String, Ty>,
) -> Ty {
    let Some(segment) = path.segments.last() else { return Ty::unknown() };
    let name = segment.ident.to_string();
    let mut arguments = Vec::new();
    match &segment.arguments {
        PathArguments::AngleBracketed(list) => {
            for argument in &list.args {
                match argument {
                    GenericArgument::Type(ty) => arguments.push(of_type(ty, own, parameters, aliases)),
                    GenericArgument::AssocType(of) => arguments.push(of_type(&of.ty, own, parameters, aliases)),
                    _ => {}
                }
            }
        }
        PathArguments::Parenthesized(list) => {
            if let ReturnType::Type(_, ty) = &list.output {
                arguments.push(of_type(ty, own, parameters, aliases));
            }
        }
        PathArguments::None => {}
    }
    if name == "Self" {
        return own.cloned().unwrap_or_else(Ty::unknown);
    }
    if let Some(ty) = parameters.get(&name).filter(|_| path.segments.len() == 1) {
        return ty.clone();
    }
    if parameters.contains_key(&path.segments[0].ident.to_string()) {
        return Ty::unknown();
    }
    if let Some(ty) = aliases.get(&name).filter(|_| arguments.is_empty()) {
        return ty.clone();
    }
    match name.as_str() {
        name if POINTERS.contains(&name) => arguments.first().cloned().unwrap_or_else(|| Ty::plain(name)),
        "Vec" | "VecDeque" | "BTreeSet" | "HashSet" => Ty::of("Vec", arguments),
        "BTreeMap" | "HashMap" => Ty::of("Map", arguments),
        "Iterator" | "IntoIterator" | "DoubleEndedIterator" | "ExactSizeIterator" => Ty::of("Iter", arguments),
        "Future" => arguments.first().cloned().unwrap_or_else(Ty::unknown),
        _ => Ty { name, arguments },
    }
}

/// Returns the first trait of a list of bounds, as a type.
pub fn of_bounds(
    bounds: &Punctuated<TypeParamBound, Token![+]>,
    own: Option<&Ty>,
    parameters: &BTreeMap<String, Ty>,
    aliases: &BTreeMap<String, Ty>,
) -> Ty {
    let mut paths = bounds.iter().filter_map(|bound| match bound {
        TypeParamBound::Trait(bound) => Some(&bound.path),
        _ => None,
    });
    paths.next().map_or_else(Ty::unknown, |path| of_path(path, own, parameters, aliases))
}

/// Returns what a method of the standard library returns, if that is known.
///
/// `closure` is the type of what a closure among the arguments returns.
pub fn of_std_method(ty: &Ty, method: &str, closure: Option<Ty>) -> Option<Ty> {
    let option = |of: Ty| Ty::of("Option", vec![of]);
    let iter = |of: Ty| Ty::of("Iter", vec![of]);
    let closure = closure.unwrap_or_else(Ty::unknown);
    match method {
        "clone" | "to_owned" | "as_ref" | "as_mut" | "borrow" | "borrow_mut" | "by_ref" | "as_deref"
        | "as_deref_mut" | "cloned" | "copied" | "inspect" | "filter" | "rev" | "take" | "skip" | "chain"
        | "peekable" | "take_while" | "skip_while" | "step_by" | "ok" | "or" | "or_else" | "ok_or" | "ok_or_else"
        | "map_err" | "inspect_err" | "context" | "with_context" => match ty.name.as_str() {
            "Result" if method == "ok" => Some(option(ty.argument(0))),
            "Vec" | "Map" if !["clone", "to_owned", "as_ref", "as_mut"].contains(&method) => Some(iter(ty.item())),
            _ => Some(ty.clone()),
        },
        "to_string" | "len" | "is_empty" | "is_some" | "is_none" | "is_ok" | "is_err" | "is_some_and"
        | "is_none_or" | "any" | "all" | "count" | "contains" | "contains_key" | "eq" | "cmp" => {
            Some(Ty::plain("bool"))
        }
        _ => match (ty.name.as_str(), method) {
            ("RwLock" | "Mutex", "read" | "write" | "lock" | "try_read" | "try_write" | "try_lock") => {
                let of = ty.argument(0);
                let of = if of.name == crate::TABLES { Ty::of("RwLockGuard", vec![of]) } else { of };
                Some(Ty::of("Result", vec![of]))
            }
            ("Weak", "upgrade") => Some(option(ty.argument(0))),
            ("OnceLock" | "OnceCell", "get") => Some(option(ty.argument(0))),
            ("Option" | "Result", "unwrap" | "expect" | "unwrap_or" | "unwrap_or_else" | "unwrap_or_default") => {
                Some(ty.argument(0))
            }
            ("Option" | "Result", "map") => Some(Ty::of(&ty.name, vec![closure])),
            ("Option" | "Result", "and_then" | "map_or" | "map_or_else") => Some(closure),
            ("Option", "insert" | "get_or_insert" | "get_or_insert_with") => Some(ty.argument(0)),
            ("Map", "get" | "get_mut" | "remove" | "insert") => Some(option(ty.argument(1))),
            ("Map", "values" | "values_mut" | "into_values") => Some(iter(ty.argument(1))),
            ("Map", "keys" | "into_keys") => Some(iter(ty.argument(0))),
            ("Map", "first_key_value" | "last_key_value" | "pop_first" | "pop_last") => Some(option(ty.item())),
            ("Map", "entry") => Some(Ty::of("Entry", vec![ty.argument(1)])),
            ("Entry", "or_default" | "or_insert" | "or_insert_with") => Some(ty.argument(0)),
            ("Vec" | "Map" | "Iter" | "Option", "iter" | "iter_mut" | "into_iter" | "drain" | "range") => {
                Some(iter(ty.item()))
            }
            (
                "Vec",
                "first" | "last" | "get" | "get_mut" | "pop" | "pop_front" | "pop_back" | "first_mut" | "last_mut",
            ) => Some(option(ty.item())),
            (
                "Iter",
                "next" | "last" | "nth" | "find" | "min" | "max" | "min_by_key" | "max_by_key" | "next_back" | "peek",
            ) => Some(option(ty.item())),
            ("Iter", "map") => Some(iter(closure)),
            ("Iter", "filter_map" | "flat_map" | "map_while") => Some(iter(closure.item())),
            ("Iter", "flatten") => Some(iter(ty.item().item())),
            ("Option", "flatten") => Some(ty.item()),
            ("Iter", "find_map") => Some(closure),
            ("Iter", "enumerate") => Some(iter(Ty::of("()", vec![Ty::plain("usize"), ty.item()]))),
            ("Iter", "zip") => Some(iter(Ty::of("()", vec![ty.item(), Ty::unknown()]))),
            ("Iter", "collect") => Some(Ty::of("Vec", vec![ty.item()])),
            _ => None,
        },
    }
}
