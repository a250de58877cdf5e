//! Ports of TCP: free, held by the daemon, or taken by another program. Read from `/proc/net`; nothing is bound.

use super::Subject;
use super::system::System;
use braid_api::{DoctorCheck, DoctorGroup, Export};
use braid_config::ListenAddress;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The port of exports where none is named.
const NBD_PORT: u16 = 10809;
/// The state of a socket that listens, in `/proc/net/tcp`.
const LISTENS: &str = "0A";

/// A socket that listens.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Listener {
    address: IpAddr,
    port: u16,
    inode: String,
}

/// Reads an address of `/proc/net/tcp` or `tcp6`: words of 32 bits in the order of bytes of this machine.
fn address_of(text: &str) -> Option<(IpAddr, u16)> {
    let (address, port) = text.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let word = |at: usize| Some(u32::from_str_radix(address.get(at..at + 8)?, 16).ok()?.to_ne_bytes());
    let address = match address.len() {
        8 => IpAddr::from(word(0)?),
        32 => {
            let mut bytes = [0; 16];
            for (at, four) in bytes.chunks_mut(4).enumerate() {
                four.copy_from_slice(&word(8 * at)?);
            }
            IpAddr::V6(Ipv6Addr::from(bytes)).to_canonical()
        }
        _ => return None,
    };
    Some((address, port))
}

/// Returns every socket that listens; `None` if the kernel lists none.
fn listeners(system: &System) -> Option<Vec<Listener>> {
    let (four, six) = (system.proc_text("net/tcp"), system.proc_text("net/tcp6"));
    if four.is_none() && six.is_none() {
        return None;
    }
    let listener = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        if *fields.get(3)? != LISTENS {
            return None;
        }
        let (address, port) = address_of(fields.get(1)?)?;
        Some(Listener { address, port, inode: (*fields.get(9)?).to_owned() })
    };
    Some([four, six].iter().flatten().flat_map(|text| text.lines().filter_map(listener)).collect())
}

/// Returns whether two addresses cannot both be listened on. `::` covers IPv4, too.
fn conflict(one: &str, other: IpAddr) -> bool {
    let Ok(one) = one.parse::<IpAddr>() else { return true };
    let any = |address: IpAddr| address == Ipv4Addr::UNSPECIFIED || address == Ipv6Addr::UNSPECIFIED;
    one == other || any(one) || any(other)
}

/// Returns whether the process has the socket with this inode open; `None` if its files cannot be listed.
fn holds(system: &System, process: u32, inode: &str) -> Option<bool> {
    let wanted = format!("socket:[{inode}]");
    let files = std::fs::read_dir(system.proc.join(format!("{process}/fd"))).ok()?;
    let is_it = |link: std::path::PathBuf| std::fs::read_link(link).is_ok_and(|to| to.as_os_str() == wanted.as_str());
    Some(files.flatten().any(|file| is_it(file.path())))
}

/// An address that the daemon listens on, or will.
struct Wanted {
    name: String,
    host: String,
    port: u16,
    /// What does not work if another program has it.
    impact: &'static str,
    /// Whether that is a problem, not a warning.
    is_configured: bool,
}

/// Checks the port of the API, of exports on TCP, and the default port of exports. `daemon` is the process of the daemon
/// that answers.
pub fn all(
    system: &System,
    api: Option<&ListenAddress>,
    exports: Option<&[Export]>,
    daemon: Option<u32>,
) -> Vec<DoctorCheck> {
    let mut wanted: Vec<Wanted> = Vec::new();
    if let Some(ListenAddress { host, port }) = api {
        wanted.push(Wanted {
            name: "port of the API".to_owned(),
            host: host.clone(),
            port: *port,
            impact: "The daemon does not start.",
            is_configured: true,
        });
    }
    for export in exports.unwrap_or_default() {
        let Some((host, port)) = export.nbd.strip_prefix("tcp:").and_then(|address| address.rsplit_once(':')) else {
            continue;
        };
        let Ok(port) = port.parse() else { continue };
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        let name = format!("port of export {}", export.name);
        wanted.push(Wanted { name, host, port, impact: "No client reaches the export.", is_configured: true });
    }
    wanted.push(Wanted {
        name: "default port of exports".to_owned(),
        host: "0.0.0.0".to_owned(),
        port: NBD_PORT,
        impact: "An export on TCP needs another port.",
        is_configured: false,
    });
    let listeners = listeners(system);
    wanted.iter().map(|wanted| wanted.check(system, listeners.as_deref(), daemon)).collect()
}

impl Wanted {
    fn check(&self, system: &System, listeners: Option<&[Listener]>, daemon: Option<u32>) -> DoctorCheck {
        let subject = Subject::new(DoctorGroup::Ports, &self.name);
        let Some(listeners) = listeners else { return subject.skipped("/proc/net/tcp cannot be read") };
        let place = format!("{} port {}", self.host, self.port);
        let has_it = |listener: &&Listener| listener.port == self.port && conflict(&self.host, listener.address);
        let found: Vec<&Listener> = listeners.iter().filter(has_it).collect();
        if found.is_empty() {
            return match (daemon, self.is_configured) {
                (Some(_), true) => {
                    let found = format!("{place}: the daemon runs and does not listen on it");
                    subject.warning(found, self.impact, ["braid status", "systemctl restart braid"])
                }
                _ => subject.ok(format!("{place} is free")),
            };
        }
        let by_daemon =
            daemon.map(|process| found.iter().all(|one| holds(system, process, &one.inode).unwrap_or(true)));
        if by_daemon == Some(true) {
            return subject.ok(format!("{place} is the daemon's"));
        }
        let text = format!("{place} is taken by another program");
        let commands = [format!("ss -ltnp 'sport = :{}'", self.port)];
        if self.is_configured {
            return subject.problem(text, self.impact, commands);
        }
        subject.warning(text, self.impact, commands)
    }
}

#[cfg(test)]
mod tests {
    use super::super::system::tests::Machine;
    use super::*;
    use braid_api::DoctorState;

    /// A line of `/proc/net/tcp`: the address as the kernel of a little-endian machine writes it.
    fn line(address: &str, port: u16, state: &str, inode: u32) -> String {
        format!(
            "   0: {address}:{port:04X} 00000000:0000 {state} 00000000:00000000 00:00000000 00000000 0 0 {inode} 1\n"
        )
    }

    fn loopback() -> String {
        format!("{:08X}", u32::from_ne_bytes([127, 0, 0, 1]))
    }

    #[test]
    fn addresses_are_read() {
        let four = format!("{}:2A76", loopback());
        assert_eq!(address_of(&four), Some((IpAddr::from([127, 0, 0, 1]), 10870)));
        let six = format!("{}:2A39", "0".repeat(32));
        assert_eq!(address_of(&six), Some((IpAddr::V6(Ipv6Addr::UNSPECIFIED), 10809)));
        assert_eq!(address_of("7F:1"), None);
        assert_eq!(address_of("nothing"), None);
    }

    #[test]
    fn ports_are_free_the_daemons_or_taken() {
        let table = line(&loopback(), 10870, LISTENS, 77) + &line(&loopback(), 10809, "01", 78);
        let machine = Machine::new(&[("proc/net/tcp", &table), ("proc/9/fd/0", "")]);
        std::os::unix::fs::symlink("socket:[77]", machine.0.join("proc/9/fd/5")).expect("a link");
        machine.write("proc/8/fd/0", "");
        let system = machine.system();
        let api = |host: &str| ListenAddress { host: host.to_owned(), port: 10870 };
        let check = |host: &str, daemon: Option<u32>| all(&system, Some(&api(host)), None, daemon).swap_remove(0);
        let own = check("127.0.0.1", Some(9));
        assert_eq!((own.state, own.found.as_str()), (DoctorState::Ok, "127.0.0.1 port 10870 is the daemon's"));
        assert_eq!(check("127.0.0.1", Some(8)).state, DoctorState::Problem);
        let taken = check("0.0.0.0", None);
        assert_eq!(taken.state, DoctorState::Problem);
        assert!(taken.commands[0].contains("10870"), "{taken:?}");
        assert_eq!(check("192.0.2.7", None).state, DoctorState::Ok);
        assert_eq!(check("192.0.2.7", Some(9)).state, DoctorState::Warning);
        let default = all(&system, None, None, None).swap_remove(0);
        assert_eq!((default.state, default.name.as_str()), (DoctorState::Ok, "default port of exports"));
    }

    #[test]
    fn the_default_port_is_not_a_problem() {
        let machine = Machine::new(&[("proc/net/tcp", &line("00000000", NBD_PORT, LISTENS, 1))]);
        let check = all(&machine.system(), None, None, None).swap_remove(0);
        assert_eq!(check.state, DoctorState::Warning);
        let none = all(&Machine::new(&[]).system(), None, None, None).swap_remove(0);
        assert_eq!(none.state, DoctorState::Skipped);
    }
}
