//! Reloads the API's token and certificate files while the daemon serves.

use crate::access::Access;
use braid_api::{Attention, AttentionCode, ErrorDetail, Severity};
use braid_tasks as tasks;
use braid_tls::{ServerTls, expiry};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// Interval between two checks of the token and certificate files.
const RELOAD_INTERVAL: Duration = Duration::from_secs(2);

/// Receives the reports about the API's files.
pub trait ApiReports: Send + Sync {
    /// Adds an event about the file `path`.
    fn report(&self, severity: Severity, kind: &str, message: String, path: &str);

    /// Sets, or clears with `None`, an item of the status that needs attention. `key` identifies the item.
    fn set_fault(&self, key: &str, fault: Option<Attention>);

    /// Sets when the certificate expires, in seconds of Unix time; `None` if that is not known.
    fn set_certificate_expiry(&self, unix_s: Option<i64>);
}

/// Reloads changed token and certificate files until the daemon stops. The new content applies from then on.
pub async fn reload_files(
    reports: Arc<dyn ApiReports>,
    tls: Arc<ServerTls>,
    access: Arc<Access>,
    mut stopping: watch::Receiver<bool>,
) {
    let mut expiry_unix_s = read_expiry(&*reports, &tls);
    report_expiry(&*reports, &tls, expiry_unix_s);
    loop {
        tokio::select! {
            () = tokio::time::sleep(RELOAD_INTERVAL) => {}
            _ = stopping.wait_for(|stopping| *stopping) => return,
        }
        let (renewed, tokens) = (Arc::clone(&tls), Arc::clone(&access));
        let checked = tasks::blocking(move || {
            let certificate = match renewed.refresh(false) {
                Ok(true) => Some(Ok(renewed.certificate().to_owned())),
                Ok(false) => None,
                Err(error) => Some(Err(error)),
            };
            (certificate, tokens.refresh())
        });
        let Ok((certificate, tokens)) = checked.await else { continue };
        if certificate.as_ref().is_some_and(Result::is_ok) {
            expiry_unix_s = read_expiry(&*reports, &tls);
        }
        report_expiry(&*reports, &tls, expiry_unix_s);
        if let Some(result) = certificate {
            report_reload(&*reports, "certificate", "the old certificate stays in use until the daemon ends", result);
        }
        for result in tokens {
            report_reload(&*reports, "tokens", "until that is corrected, its tokens are refused", result);
        }
    }
}

/// Returns when the certificate expires, in seconds of Unix time.
fn read_expiry(reports: &dyn ApiReports, tls: &ServerTls) -> Option<i64> {
    let expiry = tokio::task::block_in_place(|| expiry::of_file(tls.certificate())).filter(|unix_s| *unix_s != 0);
    reports.set_certificate_expiry(expiry);
    expiry
}

/// Reports in time that the certificate has to be renewed.
fn report_expiry(reports: &dyn ApiReports, tls: &ServerTls, expiry_unix_s: Option<i64>) {
    let impact = "Clients on the network refuse one that has expired; the socket goes on.";
    let attention =
        expiry_unix_s.and_then(|expiry| expiry::attention("the API's certificate", impact, tls.certificate(), expiry));
    reports.set_fault("api expiry", attention);
}

fn report_reload(reports: &dyn ApiReports, what: &str, meanwhile: &str, result: Result<PathBuf, ErrorDetail>) {
    match result {
        Ok(path) => {
            let path = path.display().to_string();
            reports.set_fault(&fault_key(what, &path), None);
            let message = format!("reloaded the API's {what} from {path}");
            reports.report(Severity::Info, "api_renewed", message, &path);
        }
        Err(error) => {
            let path = error.context.get("path").cloned().unwrap_or_default();
            let message = format!("{}; {meanwhile}", error.message);
            reports.report(Severity::Error, "api_files_invalid", message.clone(), &path);
            let attention = Attention {
                code: AttentionCode::ApiFilesInvalid,
                subject: "daemon".to_owned(),
                message,
                impact: String::new(),
                remedy: error.remedy,
                commands: vec![format!("ls -l {path}")],
            };
            reports.set_fault(&fault_key(what, &path), Some(attention));
        }
    }
}

/// Returns the key of a fault: there is one certificate, whichever of its files is wrong, and several token files.
fn fault_key(what: &str, path: &str) -> String {
    if what == "tokens" { format!("api tokens {path}") } else { format!("api {what}") }
}
