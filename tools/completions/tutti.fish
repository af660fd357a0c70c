# SPDX-License-Identifier: MIT
# Completion of `tutti` for fish. Commands and options are those that --help lists.
function __tutti_commands
    tutti --help 2>/dev/null | sed -n '/^Commands:/,/^$/s/^  \([a-z]*\)  *\(.*\)/\1\t\2/p'
end
function __tutti_options
    set -l words (string match -v -- '-*' (commandline -opc)[2..-1])
    tutti $words[1] --help 2>/dev/null | sed -n 's/^ *\(-[^ ,], \)\{0,1\}\(--[a-z][a-z-]*\).*/\2/p'
end
complete -c tutti -n __fish_use_subcommand -f -a '(__tutti_commands)'
complete -c tutti -n 'string match -q -- "-*" (commandline -ct)' -f -a '(__tutti_options)'
