// Bundles the page into the folder that the one argument names.
import { cp } from 'node:fs/promises';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { build } from 'esbuild';

const here = fileURLToPath(new URL('.', import.meta.url));
const target = process.argv[2];

await build({
  entryPoints: [join(here, 'page.jsx')],
  outfile: join(target, 'page.js'),
  bundle: true,
  format: 'esm',
  target: 'es2022',
  jsx: 'automatic',
  minify: true,
  define: { 'process.env.NODE_ENV': '"production"' },
  logLevel: 'error',
});
for (const name of ['index.html', 'page.css']) await cp(join(here, name), join(target, name));
