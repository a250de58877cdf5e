//! `braid completions SHELL`: what the shell needs to complete commands, options, and names of arrays and exports.
//!
//! The names come from the daemon: the script asks `braid completions arrays` (or `exports`), which nobody types. Where no
//! daemon answers at once there are none, and nothing is said.

use super::output;
use super::reach::Reach;
use braid_api::{ArrayList, ErrorDetail, ExportList};
use clap::{Args, Command, ValueEnum};
use clap_complete::{Shell, generate};
use std::fmt::Write as _;
use std::process::ExitCode;
use std::time::Duration;

/// Longest that somebody who presses Tab waits for the daemon.
const ANSWER_MAX: Duration = Duration::from_millis(500);

/// Arguments of `braid completions`.
#[derive(Args)]
pub struct CompletionsArgs {
    /// The shell
    #[arg(value_name = "SHELL")]
    what: What,
}

/// The shells that are tested, and what their scripts ask for.
#[derive(Clone, Copy, ValueEnum)]
enum What {
    Bash,
    Zsh,
    Fish,
    #[value(hide = true)]
    Arrays,
    #[value(hide = true)]
    Exports,
}

/// Prints the script, or the names.
///
/// # Errors
/// None today.
pub fn run(args: &CompletionsArgs, mut command: Command) -> anyhow::Result<ExitCode> {
    super::wait(run_on(args, &mut command))
}

async fn run_on(args: &CompletionsArgs, command: &mut Command) -> anyhow::Result<ExitCode> {
    let text = match args.what {
        What::Bash => bash(&script(Shell::Bash, command), command),
        What::Zsh => zsh(&script(Shell::Zsh, command)),
        What::Fish => fish(&script(Shell::Fish, command), command),
        What::Arrays | What::Exports => {
            let names = tokio::time::timeout(ANSWER_MAX, names(args.what)).await;
            names.ok().and_then(Result::ok).unwrap_or_default()
        }
    };
    output::text(&text);
    Ok(ExitCode::SUCCESS)
}

async fn names(what: What) -> Result<String, ErrorDetail> {
    let client = Reach::default().client()?;
    let names: Vec<String> = match what {
        What::Arrays => {
            client.get::<ArrayList>("/v1/arrays").await?.arrays.into_iter().map(|array| array.name).collect()
        }
        _ => client.get::<ExportList>("/v1/exports").await?.exports.into_iter().map(|export| export.name).collect(),
    };
    Ok(names.iter().fold(String::new(), |text, name| text + name + "\n"))
}

fn script(shell: Shell, command: &mut Command) -> String {
    let mut script = Vec::new();
    generate(shell, command, "braid", &mut script);
    String::from_utf8_lossy(&script).into_owned()
}

/// The commands whose first argument is the name of an array, or of an export: noun and verb, by its aliases, too.
fn with_names_of(kind: &str, command: &Command) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for noun in command.get_subcommands() {
        for verb in noun.get_subcommands() {
            if verb.get_positionals().next().is_some_and(|first| first.get_id() == kind) {
                let words = std::iter::once(verb.get_name()).chain(verb.get_visible_aliases());
                found.extend(words.map(|word| (noun.get_name().to_owned(), word.to_owned())));
            }
        }
    }
    found
}

/// Names stand behind noun and verb; options may stand before them, and then there is no help.
fn bash(script: &str, command: &Command) -> String {
    let mut text = script.replace("complete -F _braid ", "complete -F _braid_with_names ");
    text.push_str(
        "\n_braid_with_names() {\n    _braid \"$@\"\n    local cur=\"${COMP_WORDS[COMP_CWORD]}\" names\n    \
         [[ ${COMP_CWORD} -eq 3 && ${cur} != -* ]] || return 0\n    case \"${COMP_WORDS[1]} ${COMP_WORDS[2]}\" in\n",
    );
    for (kind, ask) in [("array", "arrays"), ("export", "exports")] {
        let commands: Vec<String> =
            with_names_of(kind, command).into_iter().map(|(noun, verb)| format!("\"{noun} {verb}\"")).collect();
        // Writing to a String cannot fail.
        let _ = writeln!(text, "        {}) names=\"$(braid completions {ask} 2>/dev/null)\" ;;", commands.join("|"));
    }
    text.push_str(
        "        *) return 0 ;;\n    esac\n    \
         [[ -n ${names} ]] && COMPREPLY=( $(compgen -W \"${names}\" -- \"${cur}\") )\n    return 0\n}\n",
    );
    text
}

/// Arguments are described one a line, with what completes them at the end.
fn zsh(script: &str) -> String {
    let mut text = String::with_capacity(script.len() + 1024);
    for line in script.lines() {
        if line.starts_with("if [ \"$funcstack[1]\"") {
            for ask in ["arrays", "exports"] {
                let _ = writeln!(
                    text,
                    "_braid_{ask}() {{\n    local -a names\n    \
                     names=(${{(f)\"$(braid completions {ask} 2>/dev/null)\"}})\n    compadd -a names\n}}\n"
                );
            }
        }
        let kind = ["array", "export"].into_iter().find(|kind| {
            let rest = line.strip_prefix("'::").or_else(|| line.strip_prefix("':"));
            rest.and_then(|rest| rest.strip_prefix(kind)).is_some_and(|rest| rest.starts_with(" -- "))
        });
        match kind.and_then(|kind| Some((kind, line.strip_suffix(":_default' \\")?))) {
            Some((kind, line)) => {
                let _ = writeln!(text, "{line}:_braid_{kind}s' \\");
            }
            None => {
                let _ = writeln!(text, "{line}");
            }
        }
    }
    text
}

fn fish(script: &str, command: &Command) -> String {
    let mut text = script.to_owned();
    for (kind, ask) in [("array", "arrays"), ("export", "exports")] {
        for (noun, verb) in with_names_of(kind, command) {
            let _ = writeln!(
                text,
                "complete -c braid -n \"__fish_braid_using_subcommand {noun}; and __fish_seen_subcommand_from {verb}\" \
                 -f -a \"(braid completions {ask} 2>/dev/null)\""
            );
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{CommandFactory, Parser};

    #[derive(Parser)]
    #[command(name = "braid")]
    struct Whole {
        #[command(subcommand)]
        _command: crate::Command,
    }

    #[test]
    fn every_script_asks_for_the_names_of_every_command_that_takes_one() {
        let command = &mut crate::aliases::added_to(Whole::command());
        let (arrays, exports) = (with_names_of("array", command).len(), with_names_of("export", command).len());
        assert!(arrays >= 6 && exports >= 4, "{arrays} {exports}");
        let count = |text: &str, what: &str| text.matches(what).count();
        let text = zsh(&script(Shell::Zsh, command));
        assert_eq!((count(&text, ":_braid_arrays' "), count(&text, ":_braid_exports' ")), (arrays, exports));
        assert_eq!((count(&text, "_braid_arrays() {"), count(&text, "_braid_exports() {")), (1, 1));
        let text = fish(&script(Shell::Fish, command), command);
        let asks = |of: &str| format!("(braid completions {of} 2>/dev/null)");
        assert_eq!((count(&text, &asks("arrays")), count(&text, &asks("exports"))), (arrays, exports));
        let text = bash(&script(Shell::Bash, command), command);
        assert!(text.contains("\"array show\"") && text.contains("\"export set\"") && !text.contains("-F _braid "));
        assert!(text.contains("\"array scrub\"") && text.contains("\"export rm\""), "also by aliases");
    }
}
