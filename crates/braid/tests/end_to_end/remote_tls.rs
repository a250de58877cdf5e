//! Exports of other servers as disks, over TLS.

use crate::exports::{Authority, daemon_with_tls, free_port};
use crate::remote_disks::{succeeds, writer, written};
use crate::support::*;
use rcgen::{CertificateParams, ExtendedKeyUsagePurpose, KeyPair};
use std::fs;
use std::process::Command;

#[test]
fn data_are_written_and_read_over_tls() {
    let (far, authority) = daemon_with_tls();
    let port = free_port();
    far.braid(&["export", "add", "a", "--nbd", &format!("tcp:127.0.0.1:{port}")]);
    let mut near = Daemon::start();
    let disk = authority.uri(port, "a");
    let uri = near.array("data", "concat", &[&disk]);
    let size = near.json(&["array", "show", "data"])["size_bytes"].as_u64().expect("a size");
    let source = near.folder.noise("source", size, 3);
    run("nbdcopy", &["--connections=4", "--requests=64", "--flush", &source, &uri]);
    // A restart finds the disk by its address, with its certificates.
    near.stop();
    near.start_again();
    let back = near.folder.join("back");
    run("nbdcopy", &["--connections=4", "--requests=64", &near.uri("data"), &back]);
    assert_eq!(checksum(&back), checksum(&source));
    // A server with the wrong identity is refused; so are certificate folders that do not exist, and a missing folder where one is needed.
    let stranger = Authority::new(&near.folder, "stranger");
    for (uri, why) in [
        (stranger.uri(port, "a"), "certificate"),
        (format!("nbds://localhost:{port}/a?tls-certificates=/nowhere"), "no folder"),
        (format!("nbd://localhost:{port}/a"), "TLS"),
    ] {
        let out = near.any(&["array", "create", "more", "--level", "concat", &uri]);
        assert!(!out.status.success() && said(&out).contains(why), "{}", said(&out));
    }
}

/// Starts a server that requires client certificates.
fn nbdkit(socket: &str, certificates: &str, file: &str) -> Command {
    let _ = fs::remove_file(socket);
    let mut nbdkit = command("nbdkit");
    nbdkit.args(["-f", "-U", socket, "--tls=require", "--tls-verify-peer"]);
    nbdkit.args([&format!("--tls-certificates={certificates}"), "file", file]);
    nbdkit
}

#[test]
fn a_server_that_requires_client_certificates_gets_one_also_after_its_restart() {
    let daemon = Daemon::start();
    let folder = &daemon.folder;
    let authority = Authority::new(folder, "authority");
    let (cert, key) = authority.sign(folder);
    let of_server = folder.join("of-server");
    fs::create_dir(&of_server).expect("a new folder");
    for (from, to) in [
        (&cert, "server-cert.pem"),
        (&key, "server-key.pem"),
        (&format!("{}/ca-cert.pem", authority.clients), "ca-cert.pem"),
    ] {
        fs::copy(from, format!("{of_server}/{to}")).expect("a copy");
    }
    let (socket, file) = (folder.join("server.sock"), folder.sparse("server.img", 40 * MIB));
    let mut server = Running::start(folder, "nbdkit", &mut nbdkit(&socket, &of_server, &file));
    wait_for("nbdkit's socket", || fs::metadata(&socket).ok());
    let disk = format!("nbds+unix:///?socket={socket}&tls-certificates={}", authority.clients);
    let out = daemon.any(&["array", "create", "data", "--level", "concat", &disk]);
    assert!(!out.status.success(), "a client without a certificate");
    let key = KeyPair::generate().expect("a key");
    let mut params = CertificateParams::new(vec!["client".to_owned()]).expect("a name");
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    let certificate = params.signed_by(&key, &authority.issuer).expect("a certificate");
    fs::write(format!("{}/client-cert.pem", authority.clients), certificate.pem()).expect("a file");
    fs::write(format!("{}/client-key.pem", authority.clients), key.serialize_pem()).expect("a file");
    let uri = daemon.array("data", "concat", &[&disk]);
    let mut fio = writer(folder, &uri);
    let before = written(&daemon);
    wait_for("data to flow", || (written(&daemon) > before + MIB || fio.ended().is_some()).then_some(()));
    server.kill();
    std::thread::sleep(std::time::Duration::from_millis(300));
    server = Running::start(folder, "again", &mut nbdkit(&socket, &of_server, &file));
    succeeds(fio);
    assert_eq!(daemon.json(&["array", "show", "data"])["members"][0]["stats"]["errors"], 0);
    drop(server);
}
