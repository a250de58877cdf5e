//! A pool that fills up reports it in advance, and exports it as metrics.

use crate::pools::{BLOCK, client, export, write};
use crate::support::*;

fn metric(daemon: &Daemon, name: &str) -> f64 {
    let socket = daemon.folder.join("api.sock");
    let text = run("curl", &["-sSf", "--unix-socket", &socket, "http://braid/metrics"]);
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok());
    value.unwrap_or_else(|| panic!("there is no {name} in:\n{text}"))
}

#[test]
fn a_pool_warns_before_it_is_full() {
    let mut daemon = Daemon::start();
    let disk = daemon.folder.sparse("a.img", 128 * MIB);
    daemon.braid(&["pool", "create", "tank", &disk]);
    for volume in ["tank/db", "tank/log"] {
        daemon.braid(&["volume", "create", volume, "1G"]);
        export(&daemon, volume);
    }
    let size = daemon.json(&["pool", "show", "tank"])["size_bytes"].as_u64().expect("a size");
    let mut db = client(&daemon, "tank/db");
    let up_to = |percent: u64| size * percent / 100 / BLOCK;
    let said = |daemon: &Daemon| daemon.events().matches("pool_nearly_full").count();
    let used = "braid_pool_used_ratio{pool=\"tank\"}";

    write(&mut db, 0..up_to(70), 1);
    wait_for("that to be measured", || (metric(&daemon, used) > 0.69).then_some(()));
    assert_eq!((said(&daemon), daemon.json(&["status"])["attention"].as_array().map(Vec::len)), (0, Some(0)));
    daemon.braid(&["snapshot", "create", "tank/db@monday"]);
    let mut log = client(&daemon, "tank/log");
    write(&mut log, 0..up_to(12), 1);
    wait_for("a warning", || {
        daemon.events().contains(r#""warning" "pool_nearly_full" "pool tank: it is 8"#).then_some(())
    });
    let attention = daemon.json(&["pool", "show", "tank"])["attention"].to_string();
    assert!(attention.contains("% full") && attention.contains("MiB are free"), "{attention}");
    let status = daemon.json(&["status"])["attention"].to_string();
    assert!(status.contains("fstrim") && status.contains("braid pool add tank"), "{status}");
    assert_eq!(daemon.json(&["pool", "show", "tank"])["state"], "active");
    write(&mut log, up_to(12)..up_to(26), 1);
    wait_for("an error", || {
        daemon.events().contains(r#""error" "pool_nearly_full" "pool tank: it is 9"#).then_some(())
    });
    // After a restart the pool reports it again, and only once.
    assert_eq!(said(&daemon), 2);
    drop((db, log));
    daemon.restart(false);
    wait_for("that to be said again", || (said(&daemon) > 0).then_some(()));
    assert_eq!(metric(&daemon, "braid_pool_active{pool=\"tank\"}"), 1.0);
    assert_eq!(metric(&daemon, "braid_pool_attention{pool=\"tank\"}"), 1.0);
    assert_eq!(metric(&daemon, "braid_pool_size_bytes{pool=\"tank\"}"), size as f64);
    wait_for("volumes to be measured", || {
        let of_snapshots = metric(&daemon, "braid_volume_snapshots_allocated_bytes{pool=\"tank\",volume=\"tank/db\"}");
        (of_snapshots >= (up_to(70) * BLOCK) as f64).then_some(())
    });
    let log = metric(&daemon, "braid_volume_allocated_bytes{pool=\"tank\",volume=\"tank/log\"}");
    assert!(log >= (up_to(26) * BLOCK) as f64 && log <= (up_to(27) * BLOCK) as f64, "{log}");
    assert_eq!(metric(&daemon, "braid_volume_allocated_bytes{pool=\"tank\",volume=\"tank/db\"}"), 0.0);
    assert_eq!(metric(&daemon, "braid_pool_snapshots{pool=\"tank\"}"), 1.0);
    assert_eq!(metric(&daemon, "braid_pool_provisioned_bytes{pool=\"tank\"}"), 2.0 * (1u64 << 30) as f64);

    daemon.braid(&["volume", "delete", "tank/log", "--yes", "--force"]);
    wait_for("space", || daemon.events().contains("pool_has_space").then_some(()));
    assert_eq!(said(&daemon), 1);
    assert!(metric(&daemon, used) < 0.78);
    let attention = daemon.json(&["pool", "show", "tank"])["attention"].to_string();
    assert_eq!(attention, "[]");
}
