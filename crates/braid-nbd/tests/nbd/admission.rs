//! Exports with admission control: pending, admitted and revoked connections, and the notification when a connection
//! has ended.

use std::sync::{Arc, Mutex};

use crate::common::*;
use braid_engine::DeviceId;
use braid_export::ExportInfo;
use braid_export::admission::{Admission, AdmissionDenied, AdmissionPass, AdmissionState};
use braid_nbd::memory::DiskBehaviour;
use braid_nbd::{Cause, NbdEvent};

/// Magic number of replies to options.
const R: &str = "0003e889045565a9";

/// Refuses "no" and "not now", admits "yes" at once, and keeps other terms pending.
#[derive(Default)]
struct TestAdmission {
    requests: Mutex<Vec<(String, std::sync::Weak<AdmissionPass>)>>,
    ended: Arc<Mutex<Vec<usize>>>,
}

impl Admission for TestAdmission {
    fn request(&self, terms: &str) -> Result<Arc<AdmissionPass>, AdmissionDenied> {
        match terms {
            "no" => return Err(AdmissionDenied::Permanently("not today".to_owned())),
            "not now" => return Err(AdmissionDenied::Temporarily("come again".to_owned())),
            _ => {}
        }
        let mut requests = self.requests.lock().unwrap();
        let (number, ended) = (requests.len(), Arc::clone(&self.ended));
        let pass = Arc::new(AdmissionPass::new(move || ended.lock().unwrap().push(number)));
        requests.push((terms.to_owned(), Arc::downgrade(&pass)));
        if terms == "yes" {
            pass.admit();
        }
        Ok(pass)
    }
}

impl TestAdmission {
    fn pass(&self, number: usize) -> Arc<AdmissionPass> {
        self.requests.lock().unwrap()[number].1.upgrade().unwrap()
    }

    fn ended(&self) -> Vec<usize> {
        self.ended.lock().unwrap().clone()
    }
}

/// Returns a client of a server that has an export with admission control, besides others.
fn with_admission() -> (Client, Arc<TestAdmission>) {
    let client = Client::connect();
    let admission = Arc::new(TestAdmission::default());
    let info = ExportInfo::new("gated", DeviceId(0), SIZE as u64);
    client.table.add(ExportInfo { admission: Some(Arc::clone(&admission) as Arc<dyn Admission>), ..info }).unwrap();
    (client, admission)
}

fn go(name: &str) -> String {
    format!("'IHAVEOPT' 00000007 {:08x} {:08x} '{name}' 0000", name.len() + 6, name.len())
}

/// The reply to a successful GO.
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
fn a_name_without_terms_is_refused() {
    let (mut client, admission) = with_admission();
    client.say("00000003");
    let refused = |kind: &str| format!("{R} 00000007 {kind} ~4");
    client.ask("without terms", &go("gated"), &refused(UNKNOWN));
    client.ask("terms for an export without admission control", &go("a?yes"), &refused(UNKNOWN));
    client.ask("wrong terms", &go("gated?no"), &refused(POLICY));
    client.ask("a wrong moment", &go("gated?not now"), &refused(SHUTDOWN));
    let got = client.say(&go("gated?no"));
    assert!(got.windows(9).any(|part| part == b"not today"), "{}", show(&got));
    // INFO admits no connection, and LIST does not name the export.
    let info = go("gated?yes").replacen("00000007", "00000006", 1);
    client.ask("information", &info, &format!("{R} 00000006 {UNKNOWN} ~4"));
    let listed = client.say("'IHAVEOPT' 00000003 00000000");
    assert!(listed.windows(3).any(|part| part == b"big") && !listed.windows(5).any(|part| part == b"gated"));
    assert!(admission.requests.lock().unwrap().is_empty());
    client.ask("right terms", &go("gated?yes"), &gone());
    assert_eq!(client.say(READ).len(), 16 + 4096);
}

#[test]
fn a_pending_connection_is_answered_when_admission_decides() {
    let (mut client, admission) = with_admission();
    client.say("00000003");
    client.ask("it waits", &go("gated?later"), "");
    // Other changes and other input do not decide it.
    decided(&mut client);
    client.ask("impatience", READ, "");
    admission.pass(0).admit();
    decided(&mut client);
    let mut got = client.host.take_output(client.socket);
    let read = got.split_off(bytes(&gone()).len());
    expect("let in", &got, &gone());
    assert_eq!((read.len(), admission.requests.lock().unwrap().len()), (16 + 4096, 1), "one request, one answer");
    assert_eq!(admission.pass(0).state(), AdmissionState::Admitted);

    // The second connection is revoked while pending: it is refused, and may retry.
    client.reconnect();
    client.say("00000003");
    client.ask("it waits", &go("gated?later"), "");
    admission.pass(1).revoke();
    decided(&mut client);
    let got = client.host.take_output(client.socket);
    expect("cut off", &got, &format!("{R} 00000007 {SHUTDOWN} ~4"));
    assert_eq!(admission.ended(), [1]);
    client.ask("again", &go("gated?yes"), &gone());

    // The client disconnects while pending.
    client.reconnect();
    client.say("00000003");
    client.ask("it waits", &go("gated?later"), "");
    client.host.client_ends(client.socket);
    client.run();
    assert_eq!(admission.ended(), [1, 3]);
}

#[test]
fn admission_is_notified_after_the_last_io_has_ended() {
    let (mut client, admission) = with_admission();
    client.say("00000003");
    client.say(&go("gated?yes"));
    client.host.behaviour = DiskBehaviour::Held;
    for _ in 0..3 {
        assert!(client.say(READ).is_empty());
    }
    admission.pass(0).revoke();
    decided(&mut client);
    assert!(client.is_closed(), "at once: nothing that it has sent is answered, or begun");
    assert!(admission.ended().is_empty());
    // A timed-out I/O is answered, and the kernel still holds its buffer.
    client.host.finish_io(Ok(()), false).unwrap();
    let late = client.host.finish_io(Err(braid_engine::ErrorKind::TimedOut), true).unwrap();
    client.run();
    assert!(admission.ended().is_empty());
    client.host.finish_io(Ok(()), false).unwrap();
    client.run();
    assert_eq!(client.server.connections(), 0);
    assert!(admission.ended().is_empty(), "nothing is left of the connection but what is late");
    client.server.released(&mut client.host, late);
    assert_eq!(admission.ended(), [0]);
    let events = client.events();
    let cut = |event: &NbdEvent| matches!(event, NbdEvent::Disconnected { cause: Cause::AdmissionRevoked, .. });
    assert!(events.iter().any(cut), "{events:?}");
}
