//! `braid completions SHELL`: the script with which a shell completes commands, options, and names of arrays and exports.
//!
//! The names come from the daemon: the script runs the hidden commands `braid completions arrays` and `exports`. If no
//! daemon replies within half a second, they print nothing.

use super::endpoint::EndpointArgs;
use super::output;
use braid_api::{ArrayList, ErrorDetail, ExportList};
use clap::{Args, Command, ValueEnum};
use clap_complete::{Shell, generate};
use std::fmt::Write as _;
use std::process::ExitCode;
use std::time::Duration;

/// Maximum time that a completion waits for the daemon.
const REPLY_MAX: Duration = Duration::from_millis(500);

/// Arguments of `braid completions`.
#[derive(Args)]
pub struct CompletionsArgs {
    /// The shell
    #[arg(value_name = "SHELL")]
    topic: Topic,
}

/// The tested shells, and the kinds of names that their scripts request.
#[derive(Clone, Copy, ValueEnum)]
enum Topic {
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
    super::block_on(run_on(args, &mut command))
}

async fn run_on(args: &CompletionsArgs, command: &mut Command) -> anyhow::Result<ExitCode> {
    let text = match args.topic {
        Topic::Bash => bash(&script(Shell::Bash, command), command),
        Topic::Zsh => zsh(&script(Shell::Zsh, command)),
        Topic::Fish => fish(&script(Shell::Fish, command), command),
        Topic::Arrays | Topic::Exports => {
            let names = tokio::time::timeout(REPLY_MAX, names(args.topic)).await;
            names.ok().and_then(Result::ok).unwrap_or_default()
        }
    };
    output::text(&text);
    Ok(ExitCode::SUCCESS)
}

async fn names(topic: Topic) -> Result<String, ErrorDetail> {
    let client = EndpointArgs::default().client()?;
    let names: Vec<String> = match topic {
        Topic::Arrays => {
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

/// Returns the commands whose first argument is the name of an array or an export: noun and verb, also under its aliases.
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

/// Adds completion of names, which follow noun and verb. After an option before them, names are not completed.
fn bash(script: &str, command: &Command) -> String {
    let mut text = script.replace("complete -F _braid ", "complete -F _braid_with_names ");
    text.push_str(
        "\n_braid_with_names() {\n    _braid \"$@\"\n    local cur=\"${COMP_WORDS[COMP_CWORD]}\" names\n    \
         [[ ${COMP_CWORD} -eq 3 && ${cur} != -* ]] || return 0\n    case \"${COMP_WORDS[1]} ${COMP_WORDS[2]}\" in\n",
    );
    for (kind, list) in [("array", "arrays"), ("export", "exports")] {
        let commands: Vec<String> =
            with_names_of(kind, command).into_iter().map(|(noun, verb)| format!("\"{noun} {verb}\"")).collect();
        // Writing to a String cannot fail.
        let _ = writeln!(text, "        {}) names=\"$(braid completions {list} 2>/dev/null)\" ;;", commands.join("|"));
    }
    text.push_str(
        "        *) return 0 ;;\n    esac\n    \
         [[ -n ${names} ]] && COMPREPLY=( $(compgen -W \"${names}\" -- \"${cur}\") )\n    return 0\n}\n",
    );
    text
}

/// Adds completion of names. The script describes one argument on each line, which ends with the function that completes it.
fn zsh(script: &str) -> String {
    let mut text = String::with_capacity(script.len() + 1024);
    for line in script.lines() {
        if line.starts_with("if [ \"$funcstack[1]\"") {
            for list in ["arrays", "exports"] {
                let _ = writeln!(
                    text,
                    "_braid_{list}() {{\n    local -a names\n    \
                     names=(${{(f)\"$(braid completions {list} 2>/dev/null)\"}})\n    compadd -a names\n}}\n"
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
    for (kind, list) in [("array", "arrays"), ("export", "exports")] {
        for (noun, verb) in with_names_of(kind, command) {
            let _ = writeln!(
                text,
                "complete -c braid -n \"__fish_braid_using_subcommand {noun}; and __fish_seen_subcommand_from {verb}\" \
                 -f -a \"(braid completions {list} 2>/dev/null)\""
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
    fn every_script_completes_the_names_of_every_command_that_takes_one() {
        let command = &mut crate::aliases::added_to(Whole::command());
        let (arrays, exports) = (with_names_of("array", command).len(), with_names_of("export", command).len());
        assert!(arrays >= 6 && exports >= 4, "{arrays} {exports}");
        let count = |text: &str, part: &str| text.matches(part).count();
        let text = zsh(&script(Shell::Zsh, command));
        assert_eq!((count(&text, ":_braid_arrays' "), count(&text, ":_braid_exports' ")), (arrays, exports));
        assert_eq!((count(&text, "_braid_arrays() {"), count(&text, "_braid_exports() {")), (1, 1));
        let text = fish(&script(Shell::Fish, command), command);
        let requests = |of: &str| format!("(braid completions {of} 2>/dev/null)");
        assert_eq!((count(&text, &requests("arrays")), count(&text, &requests("exports"))), (arrays, exports));
        let text = bash(&script(Shell::Bash, command), command);
        assert!(text.contains("\"array show\"") && text.contains("\"export set\"") && !text.contains("-F _braid "));
        assert!(text.contains("\"array scrub\"") && text.contains("\"export rm\""), "also by aliases");
    }
}
