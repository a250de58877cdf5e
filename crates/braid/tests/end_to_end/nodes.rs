//! Nodes: several daemons on one machine, each with its own folder, that form a cluster.

use std::fs;
use std::time::Duration;

use rcgen::{CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, Issuer, KeyPair};
use serde_json::{Value, json};

use crate::network::Authority;
use crate::support::*;

/// Starts a daemon as node NAME, on a port that the kernel assigns.
pub fn first(name: &str) -> Daemon {
    let daemon = Daemon::start();
    daemon.braid(&["node", "init", name, "--listen", "127.0.0.1:0"]);
    daemon
}

fn invitation(of: &Daemon) -> String {
    of.braid(&["node", "invite"]).trim().to_owned()
}

/// Starts one more node, with an invitation of `of`.
fn join_by_invitation(of: &Daemon, name: &str) -> Daemon {
    let daemon = Daemon::start();
    let token = invitation(of);
    daemon.braid(&["node", "join", &token, "--name", name, "--listen", "127.0.0.1:0"]);
    daemon
}

/// Returns the nodes that this one knows, with their states.
fn known(daemon: &Daemon) -> Vec<(String, String)> {
    let list = daemon.json(&["node", "list"]);
    let text = |node: &Value, key: &str| node[key].as_str().expect("text").to_owned();
    let nodes = list["nodes"].as_array().expect("a list");
    nodes.iter().map(|node| (text(node, "name"), text(node, "state"))).collect()
}

#[track_caller]
fn wait_until_known(daemon: &Daemon, expected: &[(&str, &str)]) {
    let expected: Vec<_> = expected.iter().map(|(name, state)| ((*name).to_owned(), (*state).to_owned())).collect();
    let mut found = Vec::new();
    let start = std::time::Instant::now();
    while start.elapsed() < PATIENCE {
        found = known(daemon);
        if found == expected {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    panic!("{expected:?} is not what is known: {found:?}\n{}", daemon.any(&["node", "list", "--json"]).status);
}

#[test]
fn nodes_join_know_each_other_and_report_which_are_away() {
    let one = first("one");
    assert_eq!(known(&one), [("one".to_owned(), "reachable".to_owned())]);
    let mut two = join_by_invitation(&one, "two");
    // By an invitation of the second node: the second node introduces the third to the first.
    let three = join_by_invitation(&two, "three");
    for daemon in [&one, &two, &three] {
        wait_until_known(daemon, &[("one", "reachable"), ("three", "reachable"), ("two", "reachable")]);
    }
    let status = one.json(&["status"]);
    assert_eq!(status["node"], "one");
    assert_eq!(status["attention"], serde_json::json!([]), "{status}");

    // A dead node is away for the others, and here again when it returns.
    two.running.kill();
    for daemon in [&one, &three] {
        wait_until_known(daemon, &[("one", "reachable"), ("three", "reachable"), ("two", "unreachable")]);
        let shown = daemon.json(&["node", "show", "two"]);
        assert!(shown["reason"].as_str().expect("why").contains("no process listens there"), "{shown}");
        let out = daemon.any(&["status", "--check"]);
        assert!(out.status.code() == Some(5) && said(&out).contains("node two is unreachable"), "{}", said(&out));
    }
    // The others work without it: one more node joins, and the dead one learns of it when it returns.
    let four = join_by_invitation(&three, "four");
    two.start_again();
    for daemon in [&one, &two, &three, &four] {
        wait_until_known(
            daemon,
            &[("four", "reachable"), ("one", "reachable"), ("three", "reachable"), ("two", "reachable")],
        );
    }
    let events = one.events();
    assert!(
        events.contains("node_unreachable") && events.contains("node_reachable") && events.contains("node_joined"),
        "{events}"
    );
    wait_for("nothing to need attention", || (one.any(&["status", "--check"]).status.code() == Some(0)).then_some(()));
}

#[test]
fn an_invitation_is_valid_once_and_for_a_limited_time() {
    let one = first("one");
    let new = Daemon::start();
    let join = |token: &str, name: &str| new.any(&["node", "join", token, "--name", name, "--listen", "127.0.0.1:0"]);
    let refused = |status: i32, words: &str, token: &str, name: &str| {
        let out = join(token, name);
        assert!(out.status.code() == Some(status) && said(&out).contains(words), "{words}: {}", said(&out));
        assert!(
            !said(&out).contains(token.rsplit('/').next().expect("a part")) || token.len() < 9,
            "a secret is repeated"
        );
    };
    let token = invitation(&one);
    let (place, rest) = token.split_once('/').expect("three parts");
    let (authority, secret) = rest.split_once('/').expect("three parts");
    refused(2, "three parts", &token[..token.len() - 33], "two");
    refused(2, "32 hexadecimal digits", &token[..token.len() - 1], "two");
    refused(2, "a name", &token, "-");
    refused(4, "there is a node one already", &token, "one");
    // A daemon of another authority does not receive the secret; nor does one without an authority.
    let other = authority.replace(|c: char| c != 'a', "a");
    refused(6, "belongs to another cluster", &format!("{place}/{other}/{secret}"), "two");
    refused(1, "is not valid", &format!("{place}/{authority}/{}", "5a".repeat(16)), "two");
    refused(6, "no process listens there", &format!("127.0.0.1:1/{authority}/{secret}"), "two");
    let log = one.running.log();
    assert!(!log.contains(secret), "{log}");
    let state = fs::read_to_string(one.folder.join("state/nodes.json")).expect("it is there");
    assert!(!state.contains(secret));
    // After all of these attempts the invitation is still valid, and only once.
    let out = join(&token, "two");
    assert!(out.status.success(), "{}", said(&out));
    refused(4, "is node two of the cluster", &token, "three");
    let third = Daemon::start();
    let again = third.any(&["node", "join", &token, "--name", "three", "--listen", "127.0.0.1:0"]);
    assert!(again.status.code() == Some(1) && said(&again).contains("is not valid"), "{}", said(&again));
    let short = one.braid(&["node", "invite", "--expires", "1s"]);
    std::thread::sleep(Duration::from_millis(1100));
    let late = third.any(&["node", "join", short.trim(), "--name", "three", "--listen", "127.0.0.1:0"]);
    assert!(late.status.code() == Some(1) && said(&late).contains("is not valid"), "{}", said(&late));
    assert_eq!(known(&third), []);
    // Invalid node names.
    for (listen, status, words) in [
        ("0.0.0.0", 2, "every address"),
        ("a b", 2, "neither a name nor a number"),
        ("192.0.2.77:1", 2, "no address of this machine"),
        (place, 4, "another process listens there"),
    ] {
        let error = third.refused(status, &["node", "init", "three", "--listen", listen]);
        assert!(error.contains(words), "{error}");
    }
    let error = third.refused(3, &["node", "invite"]);
    assert!(error.contains("belongs to no cluster") && error.contains("node init"), "{error}");
    assert!(one.refused(4, &["node", "init", "again", "--listen", "127.0.0.1:0"]).contains("is node one"));
    assert!(one.refused(2, &["node", "invite", "--expires", "31d"]).contains("30 days"));
    assert!(one.refused(3, &["node", "show", "nowhere"]).contains("there are one, two"));
    // Only the owner may read secrets.
    let mode = fs::metadata(one.folder.join("state/nodes.json")).expect("it is there");
    assert_eq!(std::os::unix::fs::PermissionsExt::mode(&mode.permissions()) & 0o777, 0o600);
}

/// Returns the stored state of a daemon's nodes.
fn kept(daemon: &Daemon) -> Value {
    let text = fs::read_to_string(daemon.folder.join("state/nodes.json")).expect("it is a node");
    serde_json::from_str(&text).expect("it is JSON")
}

/// Signs a certificate of the cluster's authority, valid between these days from now, for the given key or a new one,
/// in files NAME.crt and NAME.key of the folder.
fn certify(of: &Daemon, name: &str, subject: &str, days: (i64, i64), key: Option<&str>) -> (String, String) {
    let kept = kept(of);
    let text = |value: &Value| value.as_str().expect("text").to_owned();
    let authority = KeyPair::from_pem(&text(&kept["authority"]["key"])).expect("a key");
    let mut issuer = CertificateParams::default();
    issuer.distinguished_name = DistinguishedName::new();
    issuer.distinguished_name.push(DnType::OrganizationName, "Braid");
    issuer.distinguished_name.push(DnType::CommonName, format!("cluster {}", text(&kept["cluster"])));
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("a clock").as_secs();
    let at = |days: i64| {
        rcgen::date_time_ymd(1970, 1, 1) + Duration::from_secs(now.checked_add_signed(days * 86_400).expect("a day"))
    };
    let key = match key {
        Some(key) => KeyPair::from_pem(key).expect("a key"),
        None => KeyPair::generate().expect("a key"),
    };
    let mut params = CertificateParams::new(vec![subject.to_owned()]).expect("a name");
    (params.not_before, params.not_after) = (at(days.0), at(days.1));
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    let certificate = params.signed_by(&key, &Issuer::new(issuer, authority)).expect("a certificate");
    let files = (of.folder.join(&format!("{name}.crt")), of.folder.join(&format!("{name}.key")));
    let chain = format!("{}{}", certificate.pem(), text(&kept["authority"]["certificate"]));
    fs::write(&files.0, chain).expect("a file can be written");
    fs::write(&files.1, key.serialize_pem()).expect("a file can be written");
    files
}

/// Sends a request with these files to a node. Returns the status and the body.
fn request(node: &Daemon, method: &str, path: &str, files: Option<&(String, String)>, body: &str) -> (String, String) {
    let list = node.json(&["node", "list"]);
    let own = list["nodes"].as_array().expect("a list").iter().find(|node| node["local"] == true).expect("it is one");
    let url = format!("https://{}{path}", own["api"].as_str().expect("text"));
    let mut arguments = vec!["-sSk", "--max-time", "30", "-w", "\n%{http_code}", "-X", method, "-d", body];
    if let Some((certificate, key)) = files {
        arguments.extend(["--cert", certificate, "--key", key]);
    }
    arguments.push(&url);
    let out = run_any("curl", &arguments);
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    let status = text.rsplit('\n').next().unwrap_or_default().to_owned();
    (status, said(&out))
}

#[test]
fn only_nodes_of_the_table_are_admitted() {
    let one = first("one");
    let two = join_by_invitation(&one, "two");
    let list = two.json(&["node", "list"]);
    let uuid = list["nodes"][1]["uuid"].as_str().expect("text").to_owned();
    let text = |value: &Value| value.as_str().expect("text").to_owned();
    let own_key = text(&kept(&two)["identity"]["key"]);
    let good = certify(&one, "good", &uuid, (-1, 1), Some(&own_key));
    assert_eq!(request(&one, "GET", "/v1/status", Some(&good), "").0, "200");
    // A client without a certificate, a client with a certificate whose key is not in the table, and requests that
    // neither may send.
    let forged = certify(&one, "forged", &uuid, (-1, 1), None);
    for (method, path) in
        [("GET", "/v1/status"), ("POST", "/v1/cluster/invite"), ("GET", "/v1/cluster/admit"), ("GET", "/metrics")]
    {
        let (status, said) = request(&one, method, path, None, "");
        assert!(status == "401" && said.contains("only nodes of the cluster"), "{said}");
        let (status, said) = request(&one, method, path, Some(&forged), "");
        assert!(status == "403" && said.contains("does not know this certificate"), "{said}");
    }
    let line = &kept(&two)["members"][0];
    for body in [json!({"secret": "", "node": line}), json!({"secret": "5a".repeat(16), "node": line})] {
        let (status, said) = request(&one, "POST", "/v1/cluster/admit", None, &body.to_string());
        assert!(status == "401" && said.contains("is not valid"), "{said}");
    }
    assert_eq!(request(&one, "POST", "/v1/cluster/admit", None, "{}").0, "400");
    // Certificates outside their validity, and of another authority.
    let expired = certify(&one, "expired", &uuid, (-30, -1), Some(&own_key));
    let early = certify(&one, "early", &uuid, (2, 30), Some(&own_key));
    let stranger = Authority::new(&one.folder, "stranger").sign(&one.folder, "strange", &[&uuid]);
    for files in [&expired, &early, &stranger] {
        let (status, said) = request(&one, "GET", "/v1/status", Some(files), "");
        assert!(status == "000" && said.contains("alert"), "{said}");
    }
    // Invalid tables, or tables of another cluster.
    let mut table = json!({"cluster": kept(&one)["cluster"], "unix_s": 0, "members": kept(&one)["members"]});
    assert_eq!(request(&one, "POST", "/v1/cluster/table", Some(&good), &table.to_string()).0, "200");
    table["members"][0]["api"] = "nowhere".into();
    assert_eq!(request(&one, "POST", "/v1/cluster/table", Some(&good), &table.to_string()).0, "400");
    table["cluster"] = "00000000-0000-0000-0000-000000000001".into();
    table["members"] = json!([]);
    assert_eq!(request(&one, "POST", "/v1/cluster/table", Some(&good), &table.to_string()).0, "400");
    wait_until_known(&one, &[("one", "reachable"), ("two", "reachable")]);
}

#[test]
fn an_impostor_at_a_nodes_address_is_refused_with_a_reason() {
    let one = first("one");
    let mut two = join_by_invitation(&one, "two");
    wait_until_known(&one, &[("one", "reachable"), ("two", "reachable")]);
    let shown = one.json(&["node", "show", "two"]);
    let text = |key: &str| shown[key].as_str().expect("text").to_owned();
    let (uuid, api) = (text("uuid"), text("api"));
    let own_key = kept(&two)["identity"]["key"].as_str().expect("text").to_owned();
    two.kill();
    wait_until_known(&one, &[("one", "reachable"), ("two", "unreachable")]);
    let stranger = Authority::new(&one.folder, "stranger").sign(&one.folder, "strange", &[&uuid]);
    for (files, words) in [
        (certify(&one, "expired", &uuid, (-30, -1), Some(&own_key)), "has expired"),
        (certify(&one, "early", &uuid, (2, 30), Some(&own_key)), "clocks of the two machines differ"),
        (certify(&one, "name", "stranger", (-1, 30), Some(&own_key)), "another node answers there"),
        (certify(&one, "forged", &uuid, (-1, 30), None), "but not its key"),
        (stranger, "belongs to another cluster"),
    ] {
        let mut server = command("openssl");
        server.args([
            "s_server",
            "-quiet",
            "-accept",
            &api,
            "-cert",
            &files.0,
            "-cert_chain",
            &files.0,
            "-key",
            &files.1,
        ]);
        let server = Running::start(&one.folder, "server", &mut server);
        wait_for(words, || {
            let reason = one.json(&["node", "show", "two"])["reason"].as_str().map(str::to_owned);
            reason.filter(|reason| reason.contains(words))
        });
        drop(server);
    }
    // A server without TLS.
    let listener = std::net::TcpListener::bind(&api).expect("it is free");
    let serving = std::thread::spawn(move || {
        let (mut client, _) = listener.accept().expect("it comes");
        std::io::Write::write_all(&mut client, b"HTTP/1.1 200 OK\r\n\r\n").expect("it is taken");
    });
    wait_for("the reason", || {
        let reason = one.json(&["node", "show", "two"])["reason"].as_str().map(str::to_owned);
        reason.filter(|reason| reason.contains("InvalidMessage") || reason.contains("corrupt"))
    });
    serving.join().expect("it ends");
    two.start_again();
    wait_until_known(&one, &[("one", "reachable"), ("two", "reachable")]);
}

#[test]
fn a_removed_node_stays_out_and_rejoins_as_a_new_node() {
    let one = first("one");
    let mut two = join_by_invitation(&one, "two");
    let mut three = join_by_invitation(&one, "three");
    let all = [("one", "reachable"), ("three", "reachable"), ("two", "reachable")];
    for daemon in [&one, &two, &three] {
        wait_until_known(daemon, &all);
    }
    // A present node is removed through another one; the third is away meanwhile, and learns of it from either.
    three.kill();
    let out = one.any(&["node", "remove", "two"]);
    assert!(out.status.code() == Some(4) && said(&out).contains("--yes"), "{}", said(&out));
    one.braid(&["node", "remove", "two", "--yes"]);
    wait_for("the second to know", || (known(&two).is_empty()).then_some(()));
    assert!(two.refused(3, &["node", "invite"]).contains("was removed from its cluster"));
    let out = two.any(&["status", "--check"]);
    assert!(out.status.code() == Some(5) && said(&out).contains("was removed"), "{}", said(&out));
    three.start_again();
    wait_until_known(&three, &[("one", "reachable"), ("three", "reachable")]);
    // The removed node has the authority's key, and a key that was valid: neither admits it.
    let key = kept(&two)["identity"]["key"].as_str().expect("text").to_owned();
    for (name, key) in [("old", Some(key.as_str())), ("forged", None)] {
        let files = certify(&two, name, "x", (-1, 1), key);
        let (status, said) = request(&one, "GET", "/v1/status", Some(&files), "");
        assert_eq!(status, "403", "{said}");
        assert_eq!(said.contains("node two was removed"), name == "old", "{said}");
    }
    // A restart changes nothing; then the node joins anew, under its old name.
    two.restart(true);
    assert!(known(&two).is_empty());
    two.braid(&["node", "join", &invitation(&three), "--name", "two", "--listen", "127.0.0.1:0"]);
    for daemon in [&one, &two, &three] {
        wait_until_known(daemon, &all);
    }
    assert_eq!(two.any(&["status", "--check"]).status.code(), Some(0));

    // A node that is away is removed: it learns of it when it returns.
    two.kill();
    let error = one.refused(4, &["node", "remove", "two", "--yes"]);
    assert!(error.contains("node two cannot be asked whether it has replicas") && error.contains("--force"), "{error}");
    one.braid(&["node", "remove", "two", "--yes", "--force"]);
    wait_until_known(&three, &[("one", "reachable"), ("three", "reachable")]);
    two.start_again();
    wait_for("the second to know", || (known(&two).is_empty()).then_some(()));

    // A node removes itself: another node has to be notified, unless `--force` is given.
    three.braid(&["node", "remove", "three", "--yes"]);
    assert!(known(&three).is_empty());
    wait_until_known(&one, &[("one", "reachable")]);
    three.braid(&["node", "join", &invitation(&one), "--name", "three", "--listen", "127.0.0.1:0"]);
    let mut one = one;
    one.kill();
    let error = three.refused(4, &["node", "remove", "three", "--yes"]);
    assert!(error.contains("can be notified") && error.contains("--force"), "{error}");
    three.braid(&["node", "remove", "three", "--yes", "--force"]);
    assert!(known(&three).is_empty());
    // The last node ends the cluster with itself.
    three.braid(&["node", "init", "alone", "--listen", "127.0.0.1:0"]);
    three.braid(&["node", "remove", "alone", "--yes"]);
    assert!(known(&three).is_empty());
}

#[test]
fn certificates_are_renewed_automatically_and_on_request() {
    let one = first("one");
    let mut two = join_by_invitation(&one, "two");
    wait_until_known(&one, &[("one", "reachable"), ("two", "reachable")]);
    let certificate = |daemon: &Daemon| kept(daemon)["identity"]["certificate"].clone();
    let before = [certificate(&one), certificate(&two)];
    one.braid(&["node", "renew"]);
    assert!(one.braid(&["node", "renew", "two"]).contains("node two has a new certificate"));
    assert!(certificate(&one) != before[0] && certificate(&two) != before[1]);
    assert!(two.events().contains("node_certificate_renewed"), "{}", two.events());
    for daemon in [&one, &two] {
        wait_until_known(daemon, &[("one", "reachable"), ("two", "reachable")]);
    }
    // An expired, a nearly expired, and a not yet valid certificate: each is renewed before it is used.
    let uuid = one.json(&["node", "show", "two"])["uuid"].as_str().expect("text").to_owned();
    let key = kept(&two)["identity"]["key"].as_str().expect("text").to_owned();
    for (name, days) in [("expired", (-400, -35)), ("old", (-200, 90)), ("early", (3, 300))] {
        two.stop();
        let (file, _) = certify(&two, name, &uuid, days, Some(&key));
        let text = fs::read_to_string(file).expect("it was written");
        let end = text.find("-----END CERTIFICATE-----\n").expect("PEM") + "-----END CERTIFICATE-----\n".len();
        let mut changed = kept(&two);
        changed["identity"]["certificate"] = text[..end].into();
        fs::write(two.folder.join("state/nodes.json"), changed.to_string()).expect("it can be written");
        two.start_again();
        wait_for("the renewal", || (certificate(&two) != text[..end]).then_some(()));
        for daemon in [&one, &two] {
            wait_until_known(daemon, &[("one", "reachable"), ("two", "reachable")]);
        }
    }
}

#[test]
fn a_taken_address_is_retried_and_a_damaged_file_is_not_overwritten() {
    let mut one = first("one");
    one.braid(&["array", "create", "data", "--level", "concat", "mem:16M"]);
    let api = one.json(&["node", "show", "one"])["api"].as_str().expect("text").to_owned();
    one.stop();
    let taken = std::net::TcpListener::bind(&api).expect("it is free");
    one.start_again();
    wait_for("the event", || {
        let out = one.any(&["status", "--check", "--json"]);
        (out.status.code() == Some(5) && said(&out).contains("another process listens there")).then_some(())
    });
    // Everything else continues meanwhile.
    one.braid(&["array", "create", "more", "--level", "concat", "mem:16M"]);
    drop(taken);
    wait_for("it to be mended", || (one.any(&["status", "--check"]).status.code() == Some(0)).then_some(()));
    assert_eq!(request(&one, "GET", "/v1/status", None, "").0, "401");

    one.stop();
    let path = one.folder.join("state/nodes.json");
    let whole = fs::read_to_string(&path).expect("it is there");
    for broken in [&whole[..whole.len() / 2], "", "{\"version\": 2}"] {
        fs::write(&path, broken).expect("it can be written");
        let out = serve(&one.folder, &[]).output().expect("braid can be started");
        assert!(!out.status.success() && said(&out).contains("nodes.json"), "{}", said(&out));
        assert_eq!(fs::read_to_string(&path).expect("it is there"), broken);
    }
    fs::write(&path, whole).expect("it can be written");
    one.start_again();
    assert_eq!(known(&one), [("one".to_owned(), "reachable".to_owned())]);
}

/// Creates a pool and a replica: without replicas a node offers nothing on its data port.
fn create_a_replica(on: &Daemon) {
    on.braid(&["pool", "create", "tank", &on.folder.sparse("disk", 512 * MIB)]);
    let body = json!({
        "volume": "11111111-2222-4333-8444-555555555555", "name": "db", "voter": 0, "membership": {"voters": 7, "replicas": 7}, "in_sync": 7, "pool": "tank",
        "size_bytes": 16 * MIB, "head_bytes": MIB, "tail_bytes": 4096,
    });
    let socket = on.folder.join("api.sock");
    run("curl", &["-sSf", "--unix-socket", &socket, "http://braid/v1/replicas", "-d", &body.to_string()]);
}

#[test]
fn the_data_port_admits_only_nodes_by_default() {
    let one = first("one");
    create_a_replica(&one);
    let two = join_by_invitation(&one, "two");
    let data = one.json(&["node", "show", "one"])["data"].as_str().expect("text").to_owned();
    let uuid = two.json(&["node", "show", "two"])["uuid"].as_str().expect("text").to_owned();
    let key = kept(&two)["identity"]["key"].as_str().expect("text").to_owned();
    // Returns whether a client with these files is admitted; the list of exports is empty.
    let admitted = |name: &str, files: &(String, String)| {
        let folder = one.folder.join(&format!("{name}-certificates"));
        fs::create_dir(&folder).expect("a folder can be made");
        let authority = kept(&one)["authority"]["certificate"].as_str().expect("text").to_owned();
        fs::write(format!("{folder}/ca-cert.pem"), authority).expect("a file can be written");
        fs::copy(&files.0, format!("{folder}/client-cert.pem")).expect("it was made");
        fs::copy(&files.1, format!("{folder}/client-key.pem")).expect("it was made");
        let out = run_any("nbdinfo", &["--list", &format!("nbds://{data}/?tls-certificates={folder}")]);
        (out.status.success(), said(&out))
    };
    let good = admitted("good", &certify(&one, "good", &uuid, (-1, 1), Some(&key)));
    assert!(good.0, "{}", good.1);
    let stranger = Authority::new(&one.folder, "stranger").sign(&one.folder, "strange", &[&uuid]);
    for (name, files) in [
        ("forged", certify(&one, "forged", &uuid, (-1, 1), None)),
        ("expired", certify(&one, "expired", &uuid, (-3, -1), Some(&key))),
        ("strange", stranger),
    ] {
        let (is_in, said) = admitted(name, &files);
        assert!(!is_in, "{name}: {said}");
    }
    let plain = run_any("nbdinfo", &["--list", &format!("nbd://{data}")]);
    assert!(!plain.status.success(), "{}", said(&plain));
    // A node with replicas is not removed by mistake.
    let error = two.refused(4, &["node", "remove", "one", "--yes"]);
    assert!(error.contains("node one has replicas of db"), "{error}");
    // A removed node is no longer admitted, whatever files it has.
    one.braid(&["node", "remove", "two", "--yes"]);
    let (is_in, said_then) = admitted("removed", &certify(&one, "removed", &uuid, (-1, 1), Some(&key)));
    assert!(!is_in, "{said_then}");
    // On a trusted network.
    let third = Daemon::start();
    create_a_replica(&third);
    third.braid(&["node", "init", "third", "--listen", "127.0.0.1:0", "--data-plain"]);
    let shown = third.json(&["node", "show", "third"]);
    assert_eq!(shown["tls_data"], false);
    run("nbdinfo", &["--list", &format!("nbd://{}", shown["data"].as_str().expect("text"))]);
    // Both addresses are open again after a restart.
    let mut third = third;
    third.restart(true);
    wait_for("the data to be offered", || {
        let uri = format!("nbd://{}", shown["data"].as_str().expect("text"));
        run_any("nbdinfo", &["--list", &uri]).status.success().then_some(())
    });
}
