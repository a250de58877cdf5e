//! Exports with a gate: who waits, who is let in and who is cut off, and when the gate hears that nothing is left of a connection.
#![allow(clippy::unwrap_used)]

mod common;

use std::sync::{Arc, Mutex};

use braid_engine::DeviceId;
use braid_nbd::gate::{Denied, Gate, Pass, Standing};
use braid_nbd::memory::Disk;
use braid_nbd::{Cause, ExportInfo, NbdEvent};
use common::*;

/// Magic number of replies to options.
const R: &str = "0003e889045565a9";

/// Refuses `no`, and `not now`, lets `yes` in at once, and lets others wait.
#[derive(Default)]
struct Porter {
    asked: Mutex<Vec<(String, std::sync::Weak<Pass>)>>,
    ended: Arc<Mutex<Vec<usize>>>,
}

impl Gate for Porter {
    fn ask(&self, terms: &str) -> Result<Arc<Pass>, Denied> {
        match terms {
            "no" => return Err(Denied::Never("not today".to_owned())),
            "not now" => return Err(Denied::Now("come again".to_owned())),
            _ => {}
        }
        let mut asked = self.asked.lock().unwrap();
        let (number, ended) = (asked.len(), Arc::clone(&self.ended));
        let pass = Arc::new(Pass::new(move || ended.lock().unwrap().push(number)));
        asked.push((terms.to_owned(), Arc::downgrade(&pass)));
        if terms == "yes" {
            pass.admit();
        }
        Ok(pass)
    }
}

impl Porter {
    fn pass(&self, number: usize) -> Arc<Pass> {
        self.asked.lock().unwrap()[number].1.upgrade().unwrap()
    }

    fn ended(&self) -> Vec<usize> {
        self.ended.lock().unwrap().clone()
    }
}

/// A client of a server that has an export with a gate, besides others.
fn gated() -> (Client, Arc<Porter>) {
    let client = Client::connect();
    let porter = Arc::new(Porter::default());
    let info = ExportInfo::new("gated", DeviceId(0), SIZE as u64);
    client.table.add(ExportInfo { gate: Some(Arc::clone(&porter) as Arc<dyn Gate>), ..info }).unwrap();
    (client, porter)
}

fn go(name: &str) -> String {
    format!("'IHAVEOPT' 00000007 {:08x} {:08x} '{name}' 0000", name.len() + 6, name.len())
}

/// What GO answers when it is done.
fn gone() -> String {
    format!("{R} 00000007 00000003 0000000c 0000 0000000000100000 0d6d {R} 00000007 00000001 00000000")
}

fn decided(client: &mut Client) {
    client.server.exports_changed(&mut client.host);
    client.run();
}

const POLICY: &str = "80000002";
const UNKNOWN: &str = "80000006";
const SHUTDOWN: &str = "80000007";
const READ: &str = "25609513 0000 0000 0000000000000001 0000000000000000 00001000";

#[test]
fn the_name_alone_does_not_do() {
    let (mut client, porter) = gated();
    client.say("00000003");
    let refused = |kind: &str| format!("{R} 00000007 {kind} ~4");
    client.ask("without terms", &go("gated"), &refused(UNKNOWN));
    client.ask("terms for one without a gate", &go("a?yes"), &refused(UNKNOWN));
    client.ask("wrong terms", &go("gated?no"), &refused(POLICY));
    client.ask("a wrong moment", &go("gated?not now"), &refused(SHUTDOWN));
    let got = client.say(&go("gated?no"));
    assert!(got.windows(9).any(|part| part == b"not today"), "{}", show(&got));
    // INFO lets nobody in, and the list does not name it.
    let info = go("gated?yes").replacen("00000007", "00000006", 1);
    client.ask("information", &info, &format!("{R} 00000006 {UNKNOWN} ~4"));
    let listed = client.say("'IHAVEOPT' 00000003 00000000");
    assert!(listed.windows(3).any(|part| part == b"big") && !listed.windows(5).any(|part| part == b"gated"));
    assert!(porter.asked.lock().unwrap().is_empty());
    client.ask("right terms", &go("gated?yes"), &gone());
    assert_eq!(client.say(READ).len(), 16 + 4096);
}

#[test]
fn who_waits_is_answered_when_it_is_decided() {
    let (mut client, porter) = gated();
    client.say("00000003");
    client.ask("it waits", &go("gated?later"), "");
    // Whatever else changes, and whatever else is sent.
    decided(&mut client);
    client.ask("impatience", READ, "");
    porter.pass(0).admit();
    decided(&mut client);
    let mut got = client.host.take_output(client.socket);
    let read = got.split_off(bytes(&gone()).len());
    expect("let in", &got, &gone());
    assert_eq!((read.len(), porter.asked.lock().unwrap().len()), (16 + 4096, 1), "asked once, and answered");
    assert_eq!(porter.pass(0).standing(), Standing::Admitted);

    // Another is cut off while it waits: it is told, and may ask once more.
    client.reconnect();
    client.say("00000003");
    client.ask("it waits", &go("gated?later"), "");
    porter.pass(1).cut();
    decided(&mut client);
    let got = client.host.take_output(client.socket);
    expect("cut off", &got, &format!("{R} 00000007 {SHUTDOWN} ~4"));
    assert_eq!(porter.ended(), [1]);
    client.ask("again", &go("gated?yes"), &gone());

    // One that leaves while it waits.
    client.reconnect();
    client.say("00000003");
    client.ask("it waits", &go("gated?later"), "");
    client.host.client_ends(client.socket);
    client.run();
    assert_eq!(porter.ended(), [1, 3]);
}

#[test]
fn the_gate_hears_of_the_end_when_the_kernel_has_nothing_any_more() {
    let (mut client, porter) = gated();
    client.say("00000003");
    client.say(&go("gated?yes"));
    client.host.behaviour = Disk::Held;
    for _ in 0..3 {
        assert!(client.say(READ).is_empty());
    }
    porter.pass(0).cut();
    decided(&mut client);
    assert!(client.is_closed(), "at once: nothing that it has sent is answered, or begun");
    assert!(porter.ended().is_empty());
    // One that ran into its time limit: it is answered, and the kernel has it still.
    client.host.finish_io(Ok(()), false).unwrap();
    let late = client.host.finish_io(Err(braid_engine::ErrorKind::TimedOut), true).unwrap();
    client.run();
    assert!(porter.ended().is_empty());
    client.host.finish_io(Ok(()), false).unwrap();
    client.run();
    assert_eq!(client.server.connections(), 0);
    assert!(porter.ended().is_empty(), "nothing is left of the connection but what is late");
    client.server.released(&mut client.host, late);
    assert_eq!(porter.ended(), [0]);
    let events = client.events();
    let cut = |event: &NbdEvent| matches!(event, NbdEvent::Disconnected { cause: Cause::CutOff, .. });
    assert!(events.iter().any(cut), "{events:?}");
}
