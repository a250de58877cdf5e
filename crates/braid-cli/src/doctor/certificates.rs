//! Certificates: those of the configuration, and those of nodes.

use super::Subject;
use braid_api::{DoctorCheck, DoctorGroup, ErrorDetail, Kind, Node};
use braid_config::Config;
use braid_tls::{ClientCertificates, ServerFiles, expiry};
use std::path::{Path, PathBuf};

/// Files that the configuration names.
struct Files<'a> {
    /// The name of the check.
    name: &'a str,
    certificate: &'a Option<PathBuf>,
    key: &'a Option<PathBuf>,
    client_authorities: &'a Option<PathBuf>,
    /// What does not work with a wrong or expired certificate.
    impact: &'a str,
}

/// Checks the certificates that the configuration names.
pub fn configured(config: &Config, now_unix_s: i64) -> Vec<DoctorCheck> {
    let api = Files {
        name: "certificate of the API",
        certificate: &config.api.cert,
        key: &config.api.key,
        client_authorities: &config.api.client_ca,
        impact: "Clients on the network refuse the API; the socket goes on.",
    };
    let nbd = Files {
        name: "certificate of exports",
        certificate: &config.nbd.cert,
        key: &config.nbd.key,
        client_authorities: &config.nbd.client_ca,
        impact: "Clients of exports over TLS refuse the connection.",
    };
    [api, nbd].iter().map(|files| files.check(now_unix_s)).collect()
}

impl Files<'_> {
    fn check(&self, now_unix_s: i64) -> DoctorCheck {
        let subject = Subject::new(DoctorGroup::Certificates, self.name);
        let (certificate, key) = match (self.certificate, self.key) {
            (None, None) => return subject.skipped("the configuration names none"),
            (Some(certificate), Some(key)) => (certificate, key),
            (Some(named), None) | (None, Some(named)) => {
                let found = format!("only {} is named: a certificate needs its key", named.display());
                let command = "${EDITOR:-vi} /etc/braid/braid.toml   # name cert and key";
                return subject.problem(found, "The daemon does not start.", [command]);
            }
        };
        let client_certificates = match self.client_authorities {
            Some(_) => ClientCertificates::Optional,
            None => ClientCertificates::None,
        };
        let files = ServerFiles {
            certificate: certificate.clone(),
            key: key.clone(),
            client_authorities: self.client_authorities.clone(),
            client_certificates,
        };
        if let Err(error) = braid_tls::server(&files) {
            return self.wrong(subject, &error, certificate);
        }
        let Some(ends_unix_s) = expiry::of_file(certificate) else {
            return subject.skipped(format!("{}: its expiry cannot be read", certificate.display()));
        };
        let left_s = ends_unix_s.saturating_sub(now_unix_s);
        let dates = format!("openssl x509 -noout -dates -in {}", certificate.display());
        match expiry::expiry_text(left_s) {
            None => subject.ok(format!("{} is valid for {} days", certificate.display(), left_s / 86_400)),
            Some(text) => {
                let found = format!("{} {text}", certificate.display());
                let renew = format!("install -m 0644 NEWCERTIFICATE {}", certificate.display());
                if left_s <= 0 {
                    return subject.problem(found, self.impact, [dates, renew]);
                }
                subject.warning(found, self.impact, [dates, renew])
            }
        }
    }

    fn wrong(&self, subject: Subject, error: &ErrorDetail, certificate: &Path) -> DoctorCheck {
        if error.kind == Kind::PermissionDenied {
            return subject.skipped(error.message.clone());
        }
        let found = format!("{}; {}", error.message, error.remedy);
        let show = format!("openssl x509 -noout -subject -dates -in {}", certificate.display());
        subject.problem(found, "The daemon does not start.", [show])
    }
}

/// Checks the certificates of the nodes of the cluster; `None`: no daemon answers.
pub fn nodes(nodes: Option<&[Node]>, now_unix_s: i64) -> DoctorCheck {
    let subject = Subject::new(DoctorGroup::Certificates, "certificates of nodes");
    let Some(nodes) = nodes else { return subject.skipped("no daemon answers") };
    if nodes.is_empty() {
        return subject.skipped("the daemon belongs to no cluster");
    }
    let ends =
        nodes.iter().filter_map(|node| Some((node, node.certificate_expires_unix_s?.saturating_sub(now_unix_s))));
    let Some((node, left_s)) = ends.min_by_key(|(_, left_s)| *left_s) else {
        return subject.skipped("no certificate has been seen yet");
    };
    let found = match expiry::expiry_text(left_s) {
        None => {
            return subject.ok(format!("valid for {} days, that of node {} the shortest", left_s / 86_400, node.name));
        }
        Some(text) => format!("the certificate of node {} {text}", node.name),
    };
    let impact = "Other nodes refuse a node whose certificate has expired: its replicas are missing.";
    let renew = format!("braid node renew   # on node {}", node.name);
    if left_s <= 0 { subject.problem(found, impact, [renew]) } else { subject.warning(found, impact, [renew]) }
}

#[cfg(test)]
mod tests {
    use super::super::system::tests::Machine;
    use super::*;
    use braid_api::{DoctorState, NodeState};

    const DAY_S: i64 = 86_400;
    /// The end of the certificate that tests make: 2 January 2030.
    const ENDS_UNIX_S: i64 = 1_893_542_400;

    /// A configuration whose API has a certificate that ends at [`ENDS_UNIX_S`].
    fn config(machine: &Machine) -> Config {
        let mut params = rcgen::CertificateParams::new(vec!["node1".to_owned()]).expect("a name");
        params.not_after = rcgen::date_time_ymd(2030, 1, 2);
        let key = rcgen::KeyPair::generate().expect("a key");
        let certificate = params.self_signed(&key).expect("a certificate");
        let mut config = Config::default();
        config.api.cert = Some(machine.write("api.crt", &certificate.pem()));
        config.api.key = Some(machine.write("api.key", &key.serialize_pem()));
        config
    }

    #[test]
    fn certificates_are_valid_end_soon_or_have_ended() {
        let machine = Machine::new(&[]);
        let config = config(&machine);
        let check = |now: i64| configured(&config, now).swap_remove(0);
        let well = check(ENDS_UNIX_S - 30 * DAY_S);
        assert_eq!(well.state, DoctorState::Ok, "{well:?}");
        assert!(well.found.contains("30 days"), "{well:?}");
        let soon = check(ENDS_UNIX_S - 3 * DAY_S);
        assert_eq!(soon.state, DoctorState::Warning, "{soon:?}");
        let ended = check(ENDS_UNIX_S);
        assert_eq!(ended.state, DoctorState::Problem, "{ended:?}");
        assert!(ended.found.contains("has expired") && ended.commands[0].starts_with("openssl"), "{ended:?}");
        let exports = configured(&config, 0).swap_remove(1);
        assert_eq!(exports.state, DoctorState::Skipped, "{exports:?}");
    }

    #[test]
    fn files_that_do_not_fit_are_a_problem() {
        let machine = Machine::new(&[("wrong.key", "nothing")]);
        let right = config(&machine);
        let mut wrong = right.clone();
        wrong.api.key = Some(machine.0.join("wrong.key"));
        let check = configured(&wrong, 0).swap_remove(0);
        assert_eq!(check.state, DoctorState::Problem);
        assert!(check.found.contains("wrong.key"), "{check:?}");
        wrong.api.key = None;
        let check = configured(&wrong, 0).swap_remove(0);
        assert_eq!(check.state, DoctorState::Problem);
        assert!(check.found.contains("needs its key"), "{check:?}");
    }

    #[test]
    fn certificates_of_nodes_are_checked() {
        let node = |name: &str, ends: Option<i64>| Node {
            name: name.to_owned(),
            uuid: String::new(),
            local: false,
            api: String::new(),
            data: String::new(),
            tls_data: true,
            state: NodeState::Reachable,
            unreachable_since_unix_ms: None,
            reason: None,
            certificate_expires_unix_s: ends,
            key_sha256: String::new(),
            version: 1,
        };
        assert_eq!(nodes(None, 0).state, DoctorState::Skipped);
        assert_eq!(nodes(Some(&[]), 0).state, DoctorState::Skipped);
        assert_eq!(nodes(Some(&[node("one", None)]), 0).state, DoctorState::Skipped);
        let both = [node("one", Some(90 * DAY_S)), node("two", Some(60 * DAY_S))];
        assert_eq!(nodes(Some(&both), 0).state, DoctorState::Ok);
        let soon = nodes(Some(&both), 50 * DAY_S);
        assert_eq!(soon.state, DoctorState::Warning);
        assert!(soon.found.contains("node two"), "{soon:?}");
        assert_eq!(nodes(Some(&both), 60 * DAY_S).state, DoctorState::Problem);
    }
}
