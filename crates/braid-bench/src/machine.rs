//! The machine of a measurement, without paths or host names.

/// Returns cores, processor, memory and kernel in one sentence.
pub fn describe() -> String {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let processor = field("/proc/cpuinfo", "model name").unwrap_or_else(|| "unknown processor".to_owned());
    let kib = field("/proc/meminfo", "MemTotal").and_then(|text| text.split(' ').next()?.parse::<u64>().ok());
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    // The suffix that distributions and clouds append to the version identifies the site.
    let kernel = kernel.trim().split('-').next().unwrap_or_default().to_owned();
    format!("{cores} cores of {processor}, {} GiB of memory, Linux {kernel}", kib.unwrap_or(0).div_ceil(1 << 20))
}

fn field(file: &str, name: &str) -> Option<String> {
    let text = std::fs::read_to_string(file).ok()?;
    let line = text.lines().find(|line| line.starts_with(name))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

/// Returns today's date in UTC, as year-month-day.
pub fn today() -> String {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let (year, month, day) = braid_api::names::civil(now.as_secs() / 86_400);
    format!("{year:04}-{month:02}-{day:02}")
}
