//! The certificate of exports, while the daemon runs: reloaded when its files change, and reported before it expires.

use crate::Daemon;
use braid_api::{Attention, AttentionCode};
use braid_exports::Encryption;
use braid_tasks as tasks;
use braid_tls::expiry;
use std::sync::Arc;
use std::time::Duration;

/// Interval between two checks of the files.
const RELOAD_INTERVAL: Duration = Duration::from_secs(2);

/// The key of the fault that the files cannot be used.
const FILES_FAULT: &str = "nbd certificate";

/// The key of the fault that the certificate expires soon, or has expired.
const EXPIRY_FAULT: &str = "nbd expiry";

/// Reloads changed files until the daemon stops. The new content applies to the next connections.
pub async fn reload_files(daemon: Arc<Daemon>, encryption: Encryption) {
    let Some(tls) = encryption.tls else { return };
    let mut stopping = daemon.inventory.stopping();
    let mut expiry = None;
    let mut is_new = true;
    loop {
        if is_new {
            let tls = Arc::clone(&tls);
            expiry = tasks::blocking(move || expiry::of_file(tls.certificate())).await.ok().flatten();
            daemon.set_nbd_certificate_expiry(expiry.unwrap_or(0));
        }
        let impact = "Clients refuse one that has expired.";
        let attention = expiry
            .and_then(|expiry| expiry::attention("the certificate of exports", impact, tls.certificate(), expiry));
        daemon.inventory.set_fault(EXPIRY_FAULT, attention);
        tokio::select! {
            () = tokio::time::sleep(RELOAD_INTERVAL) => {}
            _ = stopping.wait_for(|stopping| *stopping) => return,
        }
        let refreshed = Arc::clone(&tls);
        let Ok(result) = tasks::blocking(move || refreshed.refresh(false)).await else { continue };
        is_new = matches!(result, Ok(true));
        let path = tls.certificate().display().to_string();
        match result {
            Ok(false) => {}
            Ok(true) => {
                daemon.inventory.set_fault(FILES_FAULT, None);
                let message = format!("reloaded the certificate of exports from {path}");
                daemon.inventory.events().info("nbd_certificate_renewed", message, &[("path", &path)]);
            }
            Err(error) => {
                let message = format!("{}; exports keep using the old certificate", error.message);
                daemon.inventory.events().error("nbd_certificate_invalid", &message, &[("path", &path)]);
                let attention = Attention {
                    code: AttentionCode::NbdCertificateInvalid,
                    subject: "daemon".to_owned(),
                    message,
                    impact: String::new(),
                    remedy: error.remedy,
                    commands: vec![format!("ls -l {path}")],
                };
                daemon.inventory.set_fault(FILES_FAULT, Some(attention));
            }
        }
    }
}
