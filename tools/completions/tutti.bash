# SPDX-License-Identifier: MIT
# Completion of `tutti` for bash. Commands and options are those that --help lists.
_tutti() {
    local tutti=${COMP_WORDS[0]} word=${COMP_WORDS[COMP_CWORD]} command='' i words
    COMPREPLY=()
    for ((i = 1; i < COMP_CWORD; i++)); do
        if [[ ${COMP_WORDS[i]} != -* ]]; then
            command=${COMP_WORDS[i]}
            break
        fi
    done
    if [[ -z $command && $word != -* ]]; then
        words=$("$tutti" --help 2>/dev/null | sed -n '/^Commands:/,/^$/s/^  \([a-z]*\) .*/\1/p')
    elif [[ $word == -* ]]; then
        # The lines of options are indented and begin with a dash.
        words=$("$tutti" ${command:+"$command"} --help 2>/dev/null |
            sed -n 's/^ *\(-[^ ,], \)\{0,1\}\(--[a-z][a-z-]*\).*/\2/p')
    else
        return # files, by -o default
    fi
    mapfile -t COMPREPLY < <(compgen -W "$words" -- "$word")
}
complete -o default -F _tutti tutti
