//! Conformance of TLS in the handshake, with bytes written by hand, up to the beginning of TLS.

use crate::pki;
use std::net::IpAddr;

use crate::common::*;
use braid_engine::DeviceId;
use braid_export::{ExportInfo, ExportLimits, ExportTable, ExportTls};
use braid_nbd::server::Arrival;
use braid_nbd::{Cause, NbdEvent};
use std::sync::Arc;

const STARTTLS: &str = "'IHAVEOPT' 00000005 00000000";
const LIST: &str = "'IHAVEOPT' 00000003 00000000";

/// Returns a client at 192.0.2.7 of a server with these exports and a certificate.
fn client(exports: &[(&str, ExportTls)], allow: &[&str]) -> Client {
    let mut client = Client::connect();
    let table = Arc::new(ExportTable::new());
    for (name, tls) in exports {
        let info = ExportInfo::new(*name, DeviceId(0), SIZE as u64);
        let allow = allow.iter().map(|network| network.parse().unwrap()).collect();
        let limits = ExportLimits { allow, ..ExportLimits::default() };
        table.add(ExportInfo { tls: *tls, limits, ..info }).unwrap();
    }
    let tls = Some(pki::Pki::new().server(false));
    let address: Option<IpAddr> = Some("192.0.2.7".parse().unwrap());
    client.socket = client.host.socket();
    let arrival = Arrival { address, tls, ..Arrival::plain("peer", table) };
    client.server.connect(&mut client.host, client.socket, arrival);
    client.run();
    client.events();
    client.say("00000003");
    client
}

fn ack(option: u32) -> String {
    format!("0003e889045565a9 {option:08x} 00000001 00000000")
}

fn refused(option: u32, kind: u32) -> String {
    format!("0003e889045565a9 {option:08x} {kind:08x} ~4")
}

const TLS_REQD: u32 = 0x8000_0005;
const POLICY: u32 = 0x8000_0002;
const INVALID: u32 = 0x8000_0003;
const UNKNOWN: u32 = 0x8000_0006;

fn choose(option: u32, name: &str) -> String {
    format!("'IHAVEOPT' {option:08x} {:08x} {:08x} '{name}' 0000", 6 + name.len(), name.len())
}

#[track_caller]
fn cause(client: &Client) -> Cause {
    let events = client.events();
    let Some(NbdEvent::Disconnected { cause, .. }) = events.last() else { panic!("{events:?}") };
    cause.clone()
}

#[test]
fn nothing_else_is_served_before_tls_if_all_exports_require_it() {
    let exports = [("a", ExportTls::Required), ("b", ExportTls::Required)];
    let mut client = client(&exports, &[]);
    for option in [3, 4, 8, 9, 10, 11, 99] {
        client.ask("before TLS", &format!("'IHAVEOPT' {option:08x} 00000000"), &refused(option, TLS_REQD));
    }
    for name in ["a", "absent", ""] {
        client.ask("INFO", &choose(6, name), &refused(6, TLS_REQD));
        client.ask("GO", &choose(7, name), &refused(7, TLS_REQD));
    }
    client.ask("STARTTLS with data", "'IHAVEOPT' 00000005 00000001 00", &refused(5, INVALID));
    client.ask("STARTTLS", STARTTLS, &ack(5));
    // From here on the server expects TLS: a plaintext option is not a record, and ends the connection.
    client.say(LIST);
    assert!(client.is_closed());
    assert!(matches!(cause(&client), Cause::Tls(_)));
}

#[test]
fn abort_and_export_name_before_tls() {
    let exports = [("a", ExportTls::Required)];
    let mut leaving = client(&exports, &[]);
    leaving.ask("ABORT", "'IHAVEOPT' 00000002 00000000", &ack(2));
    assert!(leaving.is_closed());
    let mut old = client(&exports, &[]);
    assert_eq!(old.say("'IHAVEOPT' 00000001 00000001 'a'"), b"");
    assert!(old.is_closed());
    assert_eq!(cause(&old), Cause::TlsRequired);
}

#[test]
fn exports_that_require_tls_are_hidden_before_it() {
    let mut client = client(&[("hidden", ExportTls::Required), ("open", ExportTls::Optional)], &[]);
    let server = "0003e889045565a9 00000003 00000002 00000008 00000004 'open'";
    client.ask("LIST", LIST, &format!("{server} {}", ack(3)));
    client.ask("INFO", &choose(6, "hidden"), &refused(6, TLS_REQD));
    client.ask("an export that does not exist", &choose(6, "absent"), &refused(6, TLS_REQD));
    client.ask("STRUCTURED_REPLY", "'IHAVEOPT' 00000008 00000000", &ack(8));
    let query = "'IHAVEOPT' 0000000a 0000000e 00000006 'hidden' 00000000";
    client.ask("SET_META_CONTEXT", query, &refused(10, TLS_REQD));
    assert!(!client.say(&choose(7, "open")).is_empty());
    assert!(!client.is_closed());
}

#[test]
fn nothing_is_hidden_if_no_export_requires_tls() {
    let mut client = client(&[("a", ExportTls::Optional), ("b", ExportTls::Off)], &[]);
    client.ask("an export that does not exist", &choose(6, "absent"), &refused(6, UNKNOWN));
    client.ask("STARTTLS", STARTTLS, &ack(5));
}

#[test]
fn plaintext_after_starttls_is_refused() {
    for behind in [LIST, "16", "'IHAVEOPT' 00000001 00000001 'a'"] {
        let mut client = client(&[("a", ExportTls::Optional)], &[]);
        assert_eq!(client.say(&format!("{STARTTLS} {behind}")), b"", "not even the agreement");
        assert!(client.is_closed());
        assert_eq!(cause(&client), Cause::TlsInjected);
    }
    // The same while the reply to an earlier option is being sent and the server receives again.
    let mut client = client(&[("a", ExportTls::Optional)], &[]);
    let used = client.host.used_bytes();
    client.host.client_takes(client.socket, 10);
    client.say(&format!("{LIST} {STARTTLS}"));
    client.host.client_takes(client.socket, usize::MAX);
    client.run();
    client.say(LIST);
    assert!(client.is_closed());
    assert_eq!(client.host.used_bytes(), used / 2, "of two clients one is left");
}

#[test]
fn only_from_some_addresses() {
    let exports = [("a", ExportTls::Off)];
    for (allow, admitted) in [
        (&["192.0.2.0/24"][..], true),
        (&["10.0.0.0/8", "192.0.2.7"], true),
        (&["10.0.0.0/8"], false),
        (&["::/0"], false),
    ] {
        let mut client = client(&exports, allow);
        let got = client.say(&choose(6, "a"));
        match admitted {
            true => assert_eq!(got[12..16], [0, 0, 0, 3], "NBD_REP_INFO"),
            false => {
                expect("INFO", &got, &refused(6, POLICY));
                client.ask("LIST", LIST, &ack(3));
                assert_eq!(client.say("'IHAVEOPT' 00000001 00000001 'a'"), b"");
                assert_eq!(cause(&client), Cause::NotAllowed);
            }
        }
    }
}
