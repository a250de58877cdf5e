//! That the check finds what it is for, and nothing else.

use super::index::Source;

/// A control plane with a lock, to which each example adds methods.
const CONTROL: &str = "
    pub struct Inventory { tables: RwLock<Tables> }
    pub struct ReadTables<'a> { tables: RwLockReadGuard<'a, Tables> }
    impl Deref for ReadTables<'_> { type Target = Tables; }
    impl Inventory {
        pub fn read(&self) -> ReadTables<'_> { ReadTables { tables: self.tables.read().unwrap() } }
        pub fn write(&self) -> RwLockWriteGuard<'_, Tables> { self.tables.write().unwrap_or_else(f) }
    }
    pub struct Pools { inventory: Arc<Inventory>, other: RwLock<u8> }
    impl Pools {
        fn locks(&self) -> usize { self.inventory.read().len() }
        fn calls(&self) -> usize { self.locks() }
        async fn later(&self) { self.inventory.write().clear() }
    }
    struct Claim { inventory: Arc<Inventory> }
    impl Drop for Claim { fn drop(&mut self) { self.inventory.write().clear(); } }
    fn looks(tables: &Tables) -> usize { 1 }
";

/// Returns the reports on a method with this body, without the file.
fn reports(body: &str) -> Vec<String> {
    let text = format!("{CONTROL} impl Pools {{ async fn example(&self, x: bool) {{\n{body}\n}} }}");
    let syntax = syn::parse_file(&text).expect("an example");
    let sources = [Source { path: "pools.rs".to_owned(), syntax }];
    super::reports(&sources).0.into_iter().map(|report| report.calls).collect()
}

#[track_caller]
fn finds(body: &str, expected: &[&str]) {
    assert_eq!(reports(body), expected, "{body}");
}

#[test]
fn a_second_lock_is_found() {
    finds("let tables = self.inventory.read(); let n = self.inventory.read().len();", &["Inventory::read"]);
    finds("let tables = self.inventory.write(); self.inventory.write().clear();", &["Inventory::write"]);
    finds("let inventory = &self.inventory; let t = inventory.read(); inventory.write();", &["Inventory::write"]);
    finds("self.inventory.write().insert(self.inventory.read().len());", &["Inventory::read"]);
    finds("let both = (self.inventory.read(), self.inventory.read());", &["Inventory::read"]);
    finds("let n = &self.inventory.read().n; self.locks();", &["Pools::locks"]);
    finds("let control = Elsewhere::new(); let t = control.read(); control.write();", &["lock"]);
}

#[test]
fn a_second_lock_is_found_through_calls() {
    finds("let tables = self.inventory.read(); self.locks();", &["Pools::locks"]);
    finds("let tables = self.inventory.read(); self.calls();", &["Pools::calls"]);
    finds("let tables = self.inventory.read(); xs.iter().map(|x| self.calls()).sum();", &["Pools::calls"]);
    finds("let f = |x| self.calls(); let tables = self.inventory.read(); f(1);", &["Pools::calls"]);
    finds("let tables = self.inventory.read(); println!(\"{}\", self.calls());", &["Pools::calls"]);
    finds("let tables = self.inventory.read(); let this = unknown(); this.calls();", &["Pools::calls"]);
}

#[test]
fn temporaries_live_as_long_as_their_statement() {
    finds("match self.inventory.read().n { 1 => self.locks(), _ => 0 };", &["Pools::locks"]);
    finds("for n in self.inventory.read().all() { self.locks(); }", &["Pools::locks"]);
    finds("if let Some(n) = self.inventory.read().get() { self.locks(); }", &["Pools::locks"]);
    finds("while let Some(n) = self.inventory.read().get() { self.locks(); }", &["Pools::locks"]);
    finds("if let Some(n) = self.inventory.read().get() { 1 } else { self.locks() };", &[]);
    finds("if self.inventory.read().is_empty() { self.locks(); }", &[]);
    finds("while self.inventory.read().is_empty() { self.locks(); }", &[]);
    finds("let Some(n) = self.inventory.read().get() else { return self.locks() }; self.locks();", &[]);
    finds("let n = { self.inventory.read().len() } + self.locks();", &[]);
    finds("let all = self.inventory.read().is_empty() && self.locks() == 0;", &[]);
    finds("let n = self.inventory.read().len(); self.locks();", &[]);
    finds("let _ = self.inventory.read(); self.locks();", &[]);
}

#[test]
fn a_lock_that_has_ended_is_none() {
    finds("let tables = self.inventory.read(); drop(tables); self.locks();", &[]);
    finds("let n = { let tables = self.inventory.read(); tables.len() }; self.locks();", &[]);
    finds("let tables = self.inventory.read(); takes(tables); self.locks();", &[]);
    finds("let tables = self.inventory.read(); if x { drop(tables); return self.locks(); } looks(&tables);", &[]);
    finds("let tables = self.inventory.read(); if x { drop(tables); } self.locks();", &["Pools::locks"]);
    finds("let tables = if x { self.inventory.read() } else { return }; self.locks();", &["Pools::locks"]);
    finds("let tables = self.inventory.read(); looks(&tables);", &[]);
    finds("let tables = self.inventory.read(); let other = self.other.read().unwrap();", &[]);
}

#[test]
fn what_locks_when_it_is_dropped_is_not_dropped_under_a_lock() {
    let make = "Claim { inventory: Arc::clone(&self.inventory) };";
    finds(&format!("let claim = {make} let tables = self.inventory.read(); drop(claim);"), &["Claim::drop"]);
    finds(&format!("let tables = self.inventory.read(); let claim = {make} may_fail()?;"), &["Claim::drop"]);
    finds(&format!("let claim = {make} let tables = self.inventory.read(); may_fail()?;"), &[]);
    finds(&format!("let claim = {make} let tables = self.inventory.read(); drop(tables); drop(claim);"), &[]);
}

#[test]
fn an_await_under_a_lock_is_found() {
    finds("let tables = self.inventory.read(); sleep(1).await;", &["await"]);
    finds("takes(self.inventory.read().len()).await;", &["await"]);
    finds("let tables = self.inventory.read(); tokio::select! { _ = one() => {} }", &["await"]);
    finds("let n = self.inventory.read().len(); takes(n).await;", &[]);
    finds("self.later().await; let tables = self.inventory.read();", &[]);
}

#[test]
fn what_is_spawned_runs_elsewhere() {
    finds("let tables = self.inventory.read(); tasks::spawn(async move { self.locks() });", &[]);
    finds("let tables = self.inventory.read(); tokio::task::spawn_blocking(move || self.locks());", &[]);
    finds("let tables = self.inventory.read(); self.ring.post(shard, Box::new(move || self.locks()));", &[]);
    finds("let tables = self.inventory.read(); tasks::spawn(self.later());", &[]);
    finds("tasks::spawn(async move { let t = self.inventory.read(); self.locks() });", &["Pools::locks"]);
    finds("let tables = self.inventory.read(); tasks::spawn(takes(self.locks()));", &["Pools::locks"]);
}

#[test]
fn a_report_says_where_through_which_calls_and_what_to_do() {
    let text = format!(
        "{CONTROL}\nimpl Pools {{ fn example(&self) {{\nlet tables = self.inventory.read();\nself.calls();\n}} }}"
    );
    let at = text.lines().position(|line| line == "self.calls();").expect("the call") + 1;
    let syntax = syn::parse_file(&text).expect("an example");
    let (reports, _) = super::reports(&[Source { path: "pools.rs".to_owned(), syntax }]);
    let report = &reports[0].text;
    let head = format!(
        "pools.rs:{at}: Pools::example holds the tables since line {} (`tables`) and calls Pools::calls",
        at - 1
    );
    assert!(report.starts_with(&head), "{report}");
    for part in
        ["Pools::calls at pools.rs:", "Pools::locks at", "Inventory::read at", "locks the tables", "(`&Tables`)"]
    {
        assert!(report.contains(part), "{part} is missing: {report}");
    }
}
