# Prints the slowest files to compile and the sums of `./cairn slowest`. Variables: folder (the build's), root, top (how many files).
# Input lines: "cairn FILE" and "cairn-lab FILE" (what each program is made from), "built FILE" (what the build makes), and
# "time USER SYSTEM WALL OBJECT" (one compile; the last of an object counts).
$1 == "cairn" { needed[$2] = "cairn" }
$1 == "cairn-lab" { if (!($2 in needed)) needed[$2] = "cairn-lab" }
$1 == "built" { current[$2] = 1 }
$1 == "time" { cpu[$5] = $2 + $3; wall[$5] = $4 }
END {
  for (object in cpu) {
    if (!(object in current)) continue
    program = object in needed ? needed[object] : "tests and others"
    sum[program] += cpu[object]
    total += cpu[object]
    if (object ~ /\.gch$/) continue
    add_sources(object)
  }
  sort_files()
  print "   CPU s   wall s  file"
  for (i = 1; i <= files && i <= top; i++) printf "%8.1f %8.1f  %s\n", seconds[i], walls[i], names[i]
  printf "%d files, median %.1f CPU s, sum %.0f CPU s with precompiled headers:", files, seconds[int((files + 1) / 2)], total
  for (program in sum) printf " %s %.0f", program, sum[program]
  print ""
}

# Sources that are compiled together share the time evenly: such a unit is a file that includes them.
function add_sources(object, unit, line, count, sources, i) {
  unit = folder object
  sub(/\.o$/, "", unit)
  if (object ~ /\/Unity\//)
    while ((getline line < unit) > 0)
      if (line ~ /^#include/) {
        gsub(/^#include "|"$/, "", line)
        sources[++count] = substr(line, length(root) + 1)
      }
  if (count == 0) {
    line = object
    sub(/^tests\/CMakeFiles\/[^\/]*\.dir\//, "tests/", line)
    sub(/^CMakeFiles\/[^\/]*\.dir\//, "", line)
    sub(/\.o$/, "", line)
    sources[++count] = line
  }
  for (i = 1; i <= count; i++) {
    names[++files] = sources[i] (count > 1 ? " (with " count - 1 " more)" : "")
    seconds[files] = cpu[object] / count
    walls[files] = wall[object] / count
  }
}

function sort_files(i, j, s, w, n) {
  for (i = 2; i <= files; i++) {
    s = seconds[i]; w = walls[i]; n = names[i]
    for (j = i - 1; j > 0 && seconds[j] < s; j--) {
      seconds[j + 1] = seconds[j]; walls[j + 1] = walls[j]; names[j + 1] = names[j]
    }
    seconds[j + 1] = s; walls[j + 1] = w; names[j + 1] = n
  }
}
