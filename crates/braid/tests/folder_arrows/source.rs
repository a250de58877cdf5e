//! Reads Rust source as far as the arrows between modules need it: which module defines which names, what `use` brings
//! in, and which paths stand in code.

use std::collections::{BTreeMap, BTreeSet};

/// A word, a number, `::` or one other character of a source file, without comments and literals.
#[derive(Clone, Copy)]
struct Token<'a> {
    text: &'a str,
    line: usize,
}

/// Returns the length of the raw string at the beginning of a text, if one begins there.
fn raw_string(text: &str) -> Option<usize> {
    let body = text.strip_prefix(['b', 'c']).unwrap_or(text).strip_prefix('r')?;
    let hashes = body.len() - body.trim_start_matches('#').len();
    let inside = body[hashes..].strip_prefix('"')?;
    let close = format!("\"{}", "#".repeat(hashes));
    Some(text.len() - inside.len() + inside.find(&close)? + close.len())
}

/// Splits a source file into tokens. Comments, strings and characters are left out.
fn tokens(text: &str) -> Vec<Token<'_>> {
    let is_word = |b: u8| b.is_ascii_alphanumeric() || b == b'_' || b >= 0x80;
    let bytes = text.as_bytes();
    let (mut found, mut i, mut line) = (Vec::new(), 0, 1);
    while i < bytes.len() {
        let rest = &text[i..];
        let length = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            let (mut depth, mut at) = (1, 2);
            while depth > 0 && at < rest.len() {
                let two = &rest.as_bytes()[at..(at + 2).min(rest.len())];
                let (step, length) = match two {
                    b"/*" => (1, 2),
                    b"*/" => (-1, 2),
                    _ => (0, 1),
                };
                depth += step;
                at += length;
            }
            at
        } else if let Some(length) = raw_string(rest) {
            length
        } else if rest.starts_with('"') {
            let mut at = 1;
            while at < rest.len() && rest.as_bytes()[at] != b'"' {
                at += if rest.as_bytes()[at] == b'\\' { 2 } else { 1 };
            }
            at + 1
        } else if rest.starts_with("'\\") {
            3 + rest[3..].find('\'').unwrap_or(0) + 1
        } else if let Some(rest) = rest.strip_prefix('\'') {
            // A character, or the mark of a lifetime.
            let letter = rest.chars().next().map_or(0, char::len_utf8);
            if rest[letter..].starts_with('\'') { letter + 2 } else { 1 }
        } else {
            let word = rest.bytes().take_while(|b| is_word(*b)).count();
            let length = word.max(1 + usize::from(rest.starts_with("::")));
            let prefix = matches!(&rest[..length], "b" | "c") && rest[length..].starts_with(['"', '\'']);
            if !prefix && !rest.as_bytes()[0].is_ascii_whitespace() {
                found.push(Token { text: &rest[..length], line });
            }
            length
        };
        let end = (i + length).min(bytes.len());
        line += bytes[i..end].iter().filter(|b| **b == b'\n').count();
        i = end;
    }
    found
}

/// The names that lead from the root of a crate to a module.
pub type ModulePath = Vec<String>;

/// What the text of one module, without its child modules, defines and names.
#[derive(Default)]
pub struct Module {
    pub file: String,
    pub items: BTreeSet<String>,
    /// Names that `use` brings in, and the paths that they stand for.
    pub imports: BTreeMap<String, Vec<String>>,
    pub globs: Vec<Vec<String>>,
    /// Paths in private `use` and in code, with their lines.
    pub paths: Vec<(Vec<String>, usize)>,
    /// The names that `pub use` brings in.
    pub exports: Vec<String>,
    /// First names of paths in code, and the first line of each: for those that a glob or a `pub use` brings in.
    pub words: BTreeMap<String, usize>,
}

/// The modules of a crate.
#[derive(Default)]
pub struct Tree {
    pub modules: BTreeMap<ModulePath, Module>,
    /// Modules declared under `#[cfg(test)]`.
    tests: BTreeSet<ModulePath>,
}

/// Returns the end of the bracketed group that opens at `at`, or of the single token there.
fn group(tokens: &[Token<'_>], at: usize) -> usize {
    let mut depth = 0;
    for (i, token) in tokens.iter().enumerate().skip(at) {
        match token.text {
            "{" | "(" | "[" => depth += 1,
            "}" | ")" | "]" => depth -= 1,
            _ => {}
        }
        if depth <= 0 {
            return i + 1;
        }
    }
    tokens.len()
}

/// Returns the end of the item, field or statement at `at`.
fn item_end(tokens: &[Token<'_>], mut at: usize) -> usize {
    const ITEMS: [&str; 10] = ["fn", "mod", "impl", "struct", "enum", "trait", "const", "static", "type", "use"];
    let is_field = !tokens[at..].iter().take(6).any(|token| ITEMS.contains(&token.text));
    while at < tokens.len() {
        match tokens[at].text {
            "{" => return group(tokens, at),
            ";" => return at + 1,
            "," if is_field => return at + 1,
            "}" => return at,
            _ => at = group(tokens, at),
        }
    }
    at
}

fn is_name(text: &str) -> bool {
    text.starts_with(|c: char| c.is_alphabetic() || c == '_')
}

/// Reads one `use` tree at `at`; calls `leaf` with each path, the name that it binds, and its line. Returns its end.
fn use_tree(
    tokens: &[Token<'_>],
    mut at: usize,
    before: &[String],
    leaf: &mut impl FnMut(Vec<String>, &str, usize),
) -> usize {
    let mut path = before.to_vec();
    while at < tokens.len() {
        let Token { text, line } = tokens[at];
        at += 1;
        match text {
            "::" => {}
            "{" => {
                while at < tokens.len() && tokens[at].text != "}" {
                    at = if tokens[at].text == "," { at + 1 } else { use_tree(tokens, at, &path, leaf) };
                }
                return at + 1;
            }
            "*" => {
                leaf(path, "*", line);
                return at;
            }
            _ => {
                if text != "self" || path.is_empty() {
                    path.push(text.to_owned());
                }
                if !matches!(tokens.get(at), Some(next) if next.text == "::") {
                    let alias = matches!(tokens.get(at), Some(next) if next.text == "as");
                    let name = if alias { tokens[at + 1].text.to_owned() } else { path[path.len() - 1].clone() };
                    leaf(path, &name, line);
                    return at + if alias { 2 } else { 0 };
                }
            }
        }
    }
    at
}

impl Tree {
    /// Adds the module `path` with the given text.
    pub fn add(&mut self, path: &[String], file: &str, text: &str) {
        self.read(path, file, &tokens(text));
    }

    fn read(&mut self, path: &[String], file: &str, tokens: &[Token<'_>]) {
        let child = |name: &str| [path, &[name.to_owned()]].concat();
        let mut module = Module { file: file.to_owned(), ..Module::default() };
        let (mut i, mut depth) = (0, 0_usize);
        let text = |i: usize| tokens.get(i).map_or("", |token| token.text);
        while i < tokens.len() {
            let line = tokens[i].line;
            match text(i) {
                "#" if (1..6).map(|n| text(i + n)).eq(["[", "cfg", "(", "test", ")"]) => {
                    i += 7;
                    while text(i) == "#" {
                        i = group(tokens, i + 1);
                    }
                    let end = item_end(tokens, i);
                    if let Some(at) = (i..end.min(i + 6)).find(|at| text(*at) == "mod") {
                        self.tests.insert(child(text(at + 1)));
                    }
                    i = end;
                    continue;
                }
                "pub" if text(i + 1) == "(" && (text(i + 2) == "in" || text(i + 3) == ")") => {
                    i = group(tokens, i + 1) - 1
                }
                "{" | "(" | "[" => depth += 1,
                "}" | ")" | "]" => depth = depth.saturating_sub(1),
                "mod" if depth == 0 && text(i + 2) == "{" => {
                    let end = group(tokens, i + 2);
                    self.read(&child(text(i + 1)), file, &tokens[i + 3..end - 1]);
                    i = end;
                    continue;
                }
                "use" if text(i + 1) != "<" => {
                    let is_export = depth == 0 && i > 0 && matches!(text(i - 1), "pub" | ")");
                    i = use_tree(tokens, i + 1, &[], &mut |path, name, line| {
                        if name == "*" {
                            module.globs.push(path);
                            return;
                        }
                        if depth == 0 && name != "_" {
                            module.imports.insert(name.to_owned(), path.clone());
                        }
                        if is_export {
                            module.exports.push(name.to_owned());
                        } else {
                            module.paths.push((path, line));
                        }
                    });
                    continue;
                }
                "struct" | "enum" | "union" | "trait" | "type" | "const" | "static" if depth == 0 => {
                    module.items.insert(text(i + if text(i + 1) == "mut" { 2 } else { 1 }).to_owned());
                }
                "fn" | "mod" => {
                    i += 1;
                    if depth == 0 && text(i - 1) == "fn" {
                        module.items.insert(text(i).to_owned());
                    }
                }
                "macro_rules" => {
                    module.items.insert(text(i + 2).to_owned());
                }
                word if is_name(word) => {
                    let before = if i > 0 { text(i - 1) } else { "" };
                    let follows = before == "::" || before == "." && (i < 2 || text(i - 2) != ".");
                    let mut names = vec![word.to_owned()];
                    while text(i + 1) == "::" && is_name(text(i + 2)) {
                        names.push(text(i + 2).to_owned());
                        i += 2;
                    }
                    if !follows {
                        module.words.entry(word.to_owned()).or_insert(line);
                        if names.len() > 1 {
                            module.paths.push((names, line));
                        }
                    }
                }
                _ => {}
            }
            i += 1;
        }
        self.modules.insert(path.to_vec(), module);
    }

    /// Returns the module that defines what `names` stands for in the module `at`; none if another crate does.
    pub fn resolve(&self, at: &[String], names: &[String], steps: usize) -> Option<ModulePath> {
        let (mut at, mut names, mut qualified) = (at.to_vec(), names, false);
        if steps > 16 {
            return None;
        }
        while let Some((name, rest)) = names.split_first() {
            match name.as_str() {
                "crate" => at.clear(),
                "self" => {}
                "super" => {
                    at.pop()?;
                }
                name => {
                    let module = self.modules.get(&at)?;
                    let child = [&at[..], &[name.to_owned()]].concat();
                    if self.modules.contains_key(&child) {
                        at = child;
                    } else if module.items.contains(name) {
                        return Some(at);
                    } else if let Some(import) = module.imports.get(name) {
                        return self.resolve(&at, &[import, rest].concat(), steps + 1);
                    } else {
                        let mut globs = module.globs.iter().filter_map(|glob| self.resolve(&at, glob, steps + 1));
                        let name = [name.to_owned()];
                        let found = globs.find_map(|glob| self.resolve(&glob, &name, steps + 1).filter(|_| glob != at));
                        return found.or(qualified.then_some(at));
                    }
                }
            }
            (names, qualified) = (rest, true);
        }
        Some(at)
    }

    /// Whether a module is test code.
    pub fn is_test(&self, path: &[String]) -> bool {
        path.iter().any(|name| name == "tests") || self.tests.iter().any(|test| path.starts_with(test))
    }

    /// Whether a module has modules in files of their own.
    pub fn is_folder(&self, path: &[String]) -> bool {
        let is_other =
            |at: &[String], file: &str| at.starts_with(path) && !self.is_test(at) && file != self.modules[path].file;
        self.modules.iter().any(|(at, module)| is_other(at, &module.file))
    }
}
