//! The functions, types and traits of the source roots, by name.

use super::types::{Ty, of_type};
use proc_macro2::Span;
use std::collections::{BTreeMap, BTreeSet};
use syn::{Attribute, Block, FnArg, ImplItem, Item, ReturnType, Signature, Stmt, TraitItem, UseTree};

/// One file of the source roots.
pub struct Source {
    pub path: String,
    pub syntax: syn::File,
}

/// A function with a body.
pub struct Function<'a> {
    /// `Type::name`, or the bare name.
    pub name: String,
    /// The type of a method.
    pub owner: Option<String>,
    pub file: usize,
    pub line: usize,
    pub signature: &'a Signature,
    pub body: &'a Block,
    /// The type parameters, with the traits that they are bound to.
    pub parameters: BTreeMap<String, Ty>,
    pub output: Ty,
}

/// What the source roots define.
#[derive(Default)]
pub struct Index<'a> {
    pub sources: Vec<&'a Source>,
    pub functions: Vec<Function<'a>>,
    /// Functions without a type, by name.
    pub free: BTreeMap<String, Vec<usize>>,
    /// Methods by type and name. A trait has those of all types that implement it.
    pub methods: BTreeMap<(String, String), Vec<usize>>,
    /// Methods by name.
    pub by_name: BTreeMap<String, Vec<usize>>,
    /// The types of signatures without a body.
    pub required: BTreeMap<(String, String), Ty>,
    /// The fields of structs, and of the variants of enums; a name with more than one meaning has no type.
    pub fields: BTreeMap<(String, String), Ty>,
    pub targets: BTreeMap<String, Ty>,
    pub aliases: BTreeMap<String, Ty>,
    pub modules: BTreeSet<String>,
    pub traits_of: BTreeMap<String, Vec<String>>,
    /// The imports of a file: its index and the name, and the segment before it.
    imports: BTreeMap<(usize, String), (Option<String>, String)>,
    globs: BTreeSet<usize>,
}

/// Returns the line of a piece of source.
pub fn line(span: Span) -> usize {
    span.start().line
}

fn is_test(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| match &attribute.meta {
        syn::Meta::List(list) => list.path.is_ident("cfg") && list.tokens.to_string() == "test",
        meta => meta.path().segments.last().is_some_and(|segment| segment.ident == "test"),
    })
}

fn module_of(path: &str) -> String {
    let parts: Vec<&str> = path.trim_end_matches(".rs").split('/').collect();
    match parts[..] {
        [.., parent, "mod"] => parent.to_owned(),
        [.., name] => name.to_owned(),
        [] => String::new(),
    }
}

impl<'a> Index<'a> {
    pub fn new(sources: &'a [Source]) -> Index<'a> {
        let mut index = Index::default();
        for source in sources {
            index.sources.push(source);
            index.modules.insert(module_of(&source.path));
            index.add_aliases(&source.syntax.items);
        }
        for (file, source) in sources.iter().enumerate() {
            index.add_items(file, &source.syntax.items);
        }
        index
    }

    fn add_aliases(&mut self, items: &'a [Item]) {
        for item in items {
            if let Item::Type(alias) = item {
                let ty = of_type(&alias.ty, None, &BTreeMap::new(), &self.aliases);
                self.aliases.insert(alias.ident.to_string(), ty);
            }
        }
    }

    fn add_items(&mut self, file: usize, items: &'a [Item]) {
        for item in items {
            self.add_item(file, item);
        }
    }

    fn add_item(&mut self, file: usize, item: &'a Item) {
        match item {
            Item::Mod(module) if !is_test(&module.attrs) => {
                self.modules.insert(module.ident.to_string());
                if let Some((_, items)) = &module.content {
                    self.add_items(file, items);
                }
            }
            Item::Use(import) => self.add_import(file, &import.tree, None),
            Item::Fn(function) if !is_test(&function.attrs) => {
                self.add_function(file, None, None, &BTreeMap::new(), &function.sig, &function.block);
            }
            Item::Struct(structure) => {
                let parameters = self.parameters(&structure.generics, None, &BTreeMap::new());
                self.add_fields(&structure.ident.to_string(), &structure.fields, &parameters);
            }
            Item::Enum(enumeration) => {
                let parameters = self.parameters(&enumeration.generics, None, &BTreeMap::new());
                for variant in &enumeration.variants {
                    self.add_fields(&format!("{}::{}", enumeration.ident, variant.ident), &variant.fields, &parameters);
                }
            }
            Item::Trait(definition) => {
                let name = definition.ident.to_string();
                for item in &definition.items {
                    let TraitItem::Fn(method) = item else { continue };
                    if let Some(body) = &method.default {
                        self.add_function(file, Some(name.clone()), None, &BTreeMap::new(), &method.sig, body);
                    } else {
                        let own = self.parameters(&method.sig.generics, None, &BTreeMap::new());
                        let output = self.output(&method.sig, None, &own);
                        self.required.insert((name.clone(), method.sig.ident.to_string()), output);
                    }
                }
            }
            Item::Impl(block) if !is_test(&block.attrs) => {
                let parameters = self.parameters(&block.generics, None, &BTreeMap::new());
                let own = of_type(&block.self_ty, None, &parameters, &self.aliases);
                let of_trait = block.trait_.as_ref().and_then(|(path, _)| path.segments.last());
                let of_trait = of_trait.map(|segment| segment.ident.to_string());
                if let Some(of_trait) = &of_trait {
                    self.traits_of.entry(own.name.clone()).or_default().push(of_trait.clone());
                }
                for item in &block.items {
                    match item {
                        ImplItem::Fn(method) if !is_test(&method.attrs) => {
                            let owner = Some(own.name.clone());
                            self.add_function(file, owner, of_trait.clone(), &parameters, &method.sig, &method.block);
                        }
                        ImplItem::Type(ty) if ty.ident == "Target" => {
                            let target = of_type(&ty.ty, Some(&own), &parameters, &self.aliases);
                            self.targets.insert(own.name.clone(), target);
                        }
                        _ => {}
                    }
                }
            }
            _ => {}
        }
    }

    fn add_import(&mut self, file: usize, tree: &UseTree, before: Option<&str>) {
        match tree {
            UseTree::Path(path) => self.add_import(file, &path.tree, Some(&path.ident.to_string())),
            UseTree::Name(name) => {
                let name = name.ident.to_string();
                self.imports.insert((file, name.clone()), (before.map(str::to_owned), name));
            }
            UseTree::Rename(renamed) => {
                let from = (before.map(str::to_owned), renamed.ident.to_string());
                self.imports.insert((file, renamed.rename.to_string()), from);
            }
            UseTree::Glob(_) => drop(self.globs.insert(file)),
            UseTree::Group(group) => group.items.iter().for_each(|tree| self.add_import(file, tree, before)),
        }
    }

    fn parameters(
        &self,
        generics: &syn::Generics,
        own: Option<&Ty>,
        outer: &BTreeMap<String, Ty>,
    ) -> BTreeMap<String, Ty> {
        let mut parameters = outer.clone();
        let bound = |bounds: &syn::punctuated::Punctuated<syn::TypeParamBound, syn::Token![+]>,
                     parameters: &BTreeMap<String, Ty>| {
            super::types::of_bounds(bounds, own, parameters, &self.aliases)
        };
        for parameter in generics.type_params() {
            let ty = bound(&parameter.bounds, &parameters);
            parameters.insert(parameter.ident.to_string(), ty);
        }
        for predicate in generics.where_clause.iter().flat_map(|clause| &clause.predicates) {
            if let syn::WherePredicate::Type(predicate) = predicate
                && let syn::Type::Path(path) = &predicate.bounded_ty
                && let Some(name) = path.path.get_ident()
            {
                let ty = bound(&predicate.bounds, &parameters);
                parameters.insert(name.to_string(), ty);
            }
        }
        parameters
    }

    fn output(&self, signature: &Signature, own: Option<&Ty>, parameters: &BTreeMap<String, Ty>) -> Ty {
        match &signature.output {
            ReturnType::Default => Ty::plain("()"),
            ReturnType::Type(_, ty) => of_type(ty, own, parameters, &self.aliases),
        }
    }

    fn add_function(
        &mut self,
        file: usize,
        owner: Option<String>,
        of_trait: Option<String>,
        outer: &BTreeMap<String, Ty>,
        signature: &'a Signature,
        body: &'a Block,
    ) {
        let own = owner.as_deref().map(Ty::plain);
        let parameters = self.parameters(&signature.generics, own.as_ref(), outer);
        let output = self.output(signature, own.as_ref(), &parameters);
        let bare = signature.ident.to_string();
        let name = owner.as_ref().map_or(bare.clone(), |owner| format!("{owner}::{bare}"));
        let id = self.functions.len();
        match &owner {
            None => self.free.entry(bare).or_default().push(id),
            Some(owner) => {
                self.methods.entry((owner.clone(), bare.clone())).or_default().push(id);
                if let Some(of_trait) = of_trait {
                    self.methods.entry((of_trait, bare.clone())).or_default().push(id);
                }
                self.by_name.entry(bare).or_default().push(id);
            }
        }
        let line = line(signature.ident.span());
        self.functions.push(Function { name, owner, file, line, signature, body, parameters, output });
        for statement in &body.stmts {
            if let Stmt::Item(item) = statement {
                self.add_item(file, item);
            }
        }
    }

    fn add_fields(&mut self, owner: &str, fields: &syn::Fields, parameters: &BTreeMap<String, Ty>) {
        let own = Ty::plain(owner);
        for (number, field) in fields.iter().enumerate() {
            let name = field.ident.as_ref().map_or(number.to_string(), ToString::to_string);
            let ty = of_type(&field.ty, Some(&own), parameters, &self.aliases);
            let at = self.fields.entry((owner.to_owned(), name)).or_insert_with(|| ty.clone());
            if *at != ty {
                *at = Ty::unknown();
            }
        }
    }

    /// Returns the types that a value of this type dereferences to, itself first.
    pub fn derefs(&self, ty: &Ty) -> Vec<Ty> {
        let mut all = vec![ty.clone()];
        while let Some(next) = self.deref(&all[all.len() - 1]).filter(|_| all.len() < 5) {
            all.push(next);
        }
        all
    }

    pub fn deref(&self, ty: &Ty) -> Option<Ty> {
        if ty.name.ends_with("Guard") && ty.arguments.len() == 1 {
            return ty.arguments.first().cloned();
        }
        self.targets.get(&ty.name).cloned()
    }

    /// Returns the functions that a call of the path `segments` in `file` may run.
    pub fn functions_of_path(&self, file: usize, segments: &[String], own: Option<&Ty>) -> Vec<usize> {
        let Some((name, before)) = segments.split_last() else { return Vec::new() };
        let all = || self.free.get(name).cloned().unwrap_or_default();
        let Some(before) = before.last() else {
            let here: Vec<usize> = all().into_iter().filter(|id| self.functions[*id].file == file).collect();
            if !here.is_empty() {
                return here;
            }
            return match self.imports.get(&(file, name.clone())) {
                Some((Some(before), name)) => self.of_module(before, name),
                None if self.globs.contains(&file) => all(),
                _ => Vec::new(),
            };
        };
        if before == "Self" {
            return own.map(|own| self.methods_of(own, name)).unwrap_or_default();
        }
        if before.starts_with(char::is_uppercase) {
            let ty = self.imports.get(&(file, before.clone())).map_or(before, |(_, name)| name);
            return self.methods_of(self.aliases.get(ty).unwrap_or(&Ty::plain(ty)), name);
        }
        let module = self.imports.get(&(file, before.clone())).map_or(before, |(_, name)| name);
        self.of_module(module, name)
    }

    fn of_module(&self, module: &str, name: &str) -> Vec<usize> {
        let all = self.free.get(name).cloned().unwrap_or_default();
        let own = |id: &&usize| module_of(&self.sources[self.functions[**id].file].path) == module;
        let exact: Vec<usize> = all.iter().filter(own).copied().collect();
        let is_known = self.modules.contains(module) || ["self", "super", "crate"].contains(&module);
        if !exact.is_empty() {
            exact
        } else if is_known || module.starts_with("braid") {
            all
        } else {
            Vec::new()
        }
    }

    /// Returns the methods with this name of a known type or trait.
    pub fn methods_of(&self, ty: &Ty, name: &str) -> Vec<usize> {
        for ty in self.derefs(ty) {
            let mut found = self.methods.get(&(ty.name.clone(), name.to_owned())).cloned().unwrap_or_default();
            if found.is_empty() {
                for of_trait in self.traits_of.get(&ty.name).into_iter().flatten() {
                    let default = self.methods.get(&(of_trait.clone(), name.to_owned())).into_iter().flatten();
                    found.extend(default.filter(|id| self.functions[**id].owner.as_ref() == Some(of_trait)));
                }
            }
            if !found.is_empty() {
                return found;
            }
        }
        Vec::new()
    }

    /// Returns what runs when a value of this type is dropped, as far as the type itself says.
    pub fn drops_of(&self, ty: &Ty) -> Vec<usize> {
        let mut found = self.methods.get(&(ty.name.clone(), "drop".to_owned())).cloned().unwrap_or_default();
        found.extend(ty.arguments.iter().flat_map(|argument| self.drops_of(argument)));
        found
    }

    /// Returns all methods with this name and this number of arguments besides `self`.
    pub fn methods_named(&self, name: &str, arguments: usize) -> Vec<usize> {
        let fits = |id: &&usize| {
            let inputs = &self.functions[**id].signature.inputs;
            inputs.len() == arguments + 1 && matches!(inputs.first(), Some(FnArg::Receiver(_)))
        };
        self.by_name.get(name).into_iter().flatten().filter(fits).copied().collect()
    }

    pub fn field(&self, ty: &Ty, name: &str) -> Ty {
        let all = self.derefs(ty);
        let found = all.iter().find_map(|ty| self.fields.get(&(ty.name.clone(), name.to_owned())));
        found.cloned().unwrap_or_else(Ty::unknown)
    }

    /// Returns whether a value of this type is a lock of the tables that is held, or has one.
    pub fn has_guard(&self, ty: &Ty) -> bool {
        self.is_guard(ty, 0) || ty.arguments.iter().any(|argument| self.has_guard(argument))
    }

    fn is_guard(&self, ty: &Ty, depth: usize) -> bool {
        if ty.name.ends_with("Guard") {
            return ty.arguments.iter().any(|of| of.name == crate::TABLES);
        }
        let from = (ty.name.clone(), String::new());
        let mut fields = self.fields.range(from..).take_while(|((owner, _), _)| *owner == ty.name);
        depth < 3 && fields.any(|(_, field)| self.is_guard(field, depth + 1))
    }
}
