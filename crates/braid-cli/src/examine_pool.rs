//! How `braid disk examine` shows the label of a pool, besides its fields.

use braid_format::pool::PoolLabel;
use braid_geometry::units::format_size;
use serde_json::{Value, json};

use super::examine::LabelView;

impl LabelView for PoolLabel {
    fn title(&self) -> String {
        format!("member {} of pool \"{}\" ({})", self.member, self.name, self.uuid)
    }

    fn order(&self) -> (u64, u64) {
        (0, self.sequence)
    }

    fn sequence(&self) -> u64 {
        self.sequence
    }

    fn tables(&self) -> String {
        let mut text = format!("{:<7}{:<38}{:<18}{}\n", "MEMBER", "ID", "STATE", "SIZE");
        for (number, member) in self.numbered() {
            let this = if number == self.member { "  (this disk)" } else { "" };
            let size = format_size(member.size_bytes);
            text.push_str(&format!("{number:<7}{:<38}{:<18}{size}{this}\n", member.uuid.to_string(), member.state));
        }
        text
    }

    /// The label of a pool has neither zones nor jobs.
    fn tables_json(&self) -> [Value; 3] {
        let members = self.numbered().map(|(number, member)| {
            json!({
                "number": number,
                "id": member.uuid.to_string(),
                "state": member.state.to_string(),
                "size_bytes": member.size_bytes,
            })
        });
        [members.collect(), Value::Null, Value::Null]
    }
}
