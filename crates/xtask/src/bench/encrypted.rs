//! The cost of TLS: large blocks through one connection, encrypted against unencrypted.

use std::net::TcpListener;
use std::process::{Command, Stdio};

use anyhow::{Context as _, bail};
use braid_bench::daemon::Daemon;
use braid_bench::process::{CLIENT_CORE, Folder};
use braid_bench::statistics::median;

use super::child::{bench, time};
use super::{Effort, Measurement, Target};

/// Creates a certificate authority and a server certificate in the folder, both valid for two days, and returns the daemon's arguments for them.
fn certificates(folder: &Folder) -> anyhow::Result<Vec<String>> {
    let [ca, ca_key, certificate, key] =
        ["ca-cert.pem", "ca-key.pem", "server-cert.pem", "server-key.pem"].map(|name| folder.join(name));
    let new = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"];
    let authority = ["-subj", "/CN=authority", "-keyout", &ca_key, "-out", &ca];
    openssl(&[&["req", "-x509"], &new[..], &authority].concat())?;
    let server = ["-subj", "/CN=localhost", "-keyout", &key, "-out", &certificate, "-CA", &ca, "-CAkey", &ca_key];
    let is = ["-addext", "basicConstraints=critical,CA:FALSE", "-addext", "subjectAltName=DNS:localhost"];
    openssl(&[&["req", "-x509"], &new[..], &server, &is].concat())?;
    Ok(vec!["--nbd-cert".to_owned(), certificate, "--nbd-key".to_owned(), key])
}

fn openssl(arguments: &[&str]) -> anyhow::Result<()> {
    let out = Command::new("openssl").args(arguments).stdin(Stdio::null()).output().context("openssl")?;
    if !out.status.success() {
        bail!("openssl: {}", String::from_utf8_lossy(&out.stderr).trim());
    }
    Ok(())
}

/// Measures 1 MiB reads and writes at depth 16.
pub fn measure(effort: &Effort, found: &mut dyn FnMut(Measurement)) -> anyhow::Result<()> {
    let daemon = Daemon::start_with(certificates)?;
    daemon.cli(&["array", "create", "memory", "--level", "concat", "mem:256M"])?;
    let export = |name: &str, tls: &str| {
        // Another process may take the port before the daemon binds it: then the command fails.
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let address = format!("tcp:127.0.0.1:{port}");
        daemon.cli(&["export", "add", "memory", "--nbd", &address, "--name", name, "--tls", tls])?;
        anyhow::Ok(port)
    };
    let folder = daemon.join("");
    let folder = folder.trim_end_matches('/');
    let plain = format!("nbd://127.0.0.1:{}/clear", export("clear", "off")?);
    let port = export("secured", "required")?;
    let tls = format!("nbds://127.0.0.1:{port}/secured?tls-hostname=localhost&tls-certificates={folder}");
    let slice = time(effort.slice);
    let load = |op, uri, until: &[&str]| {
        let load = ["--pattern", "sequential", "--op", op, "--block-size", "1M", "--depth", "16", uri];
        bench(CLIENT_CORE, &[&load[..], until].concat()).map(|report| report.bytes_per_second)
    };
    // Every block is written once first: page faults on untouched memory are not to be measured.
    load("write", &plain, &["--count", "256"])?;
    for op in ["read", "write"] {
        let (mut with, mut without) = (Vec::new(), Vec::new());
        for _ in 0..effort.pairs {
            with.push(load(op, &tls, &["--time", &slice])?);
            without.push(load(op, &plain, &["--time", &slice])?);
        }
        let detail = format!("{:.0} against {:.0} MB/s", median(&with) / 1e6, median(&without) / 1e6);
        let measure = format!("1 MiB sequential {op} from memory, depth 16, one connection: TLS / unencrypted");
        found(Measurement::of_pairs(measure, Target::AtLeast(0.5), &with, &without, detail));
    }
    Ok(())
}
